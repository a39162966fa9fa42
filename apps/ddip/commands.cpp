#include "command.h"

namespace ddip::app {

const std::vector<Command>& commands() {
  static const std::vector<Command> table = {
      {"up", up, up_flags()},
      {"ls", ls, ls_flags()},
      {"info", info, info_flags()},
      {"down", down, down_flags()},
      {"exec", exec, exec_flags()},
      {"log", log, log_flags()},
      {"why", why, why_flags()},
      {"interrupt", interrupt, interrupt_flags()},
      {"wait", wait, wait_flags()},
      {"run", run, run_flags()},
      {"data", data, data_flags()},
      {"unet", unet, unet_flags()},
      {"partition", partition, partition_flags()},
      {"replay", replay, replay_flags()},
      {"study", study, study_flags()},
      {"doctor", doctor, doctor_flags()},
      {"completion", completion, completion_flags()},
  };
  return table;
}

}  // namespace ddip::app
