// The program's commands: each is a file of its own with a table of flags and a function.
#pragma once

#include <string>
#include <vector>

#include "context.h"
#include "ddip/launch/flags.h"

namespace ddip::app {

using Arguments = std::vector<std::string>;

// Exit codes: 0 done, 1 it failed, 2 the request was wrong (ConfigError).
using Run = int (*)(const Context& context, const Arguments& arguments);

struct Command {
  std::string name;
  Run run;
  launch::FlagTable flags;
};

// In the order in which `ddip --help` lists them.
const std::vector<Command>& commands();

launch::FlagTable up_flags();
launch::FlagTable ls_flags();
launch::FlagTable info_flags();
launch::FlagTable down_flags();
launch::FlagTable exec_flags();
launch::FlagTable log_flags();
launch::FlagTable why_flags();
launch::FlagTable interrupt_flags();
launch::FlagTable wait_flags();
launch::FlagTable run_flags();
launch::FlagTable data_flags();
launch::FlagTable unet_flags();
launch::FlagTable partition_flags();
launch::FlagTable replay_flags();
launch::FlagTable study_flags();
launch::FlagTable doctor_flags();
launch::FlagTable completion_flags();

int up(const Context& context, const Arguments& arguments);
int ls(const Context& context, const Arguments& arguments);
int info(const Context& context, const Arguments& arguments);
int down(const Context& context, const Arguments& arguments);
int exec(const Context& context, const Arguments& arguments);
int log(const Context& context, const Arguments& arguments);
int why(const Context& context, const Arguments& arguments);
int interrupt(const Context& context, const Arguments& arguments);
int wait(const Context& context, const Arguments& arguments);
int run(const Context& context, const Arguments& arguments);
int data(const Context& context, const Arguments& arguments);
int unet(const Context& context, const Arguments& arguments);
int partition(const Context& context, const Arguments& arguments);
int replay(const Context& context, const Arguments& arguments);
int study(const Context& context, const Arguments& arguments);
int doctor(const Context& context, const Arguments& arguments);
int completion(const Context& context, const Arguments& arguments);

}  // namespace ddip::app
