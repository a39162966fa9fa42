#include "ddip/launch/group_flags.h"

namespace ddip::launch {

FlagTable group_flags(const std::string& command) {
  const bool shell = command.starts_with("ddip ");
  FlagTable table;
  table.command = command;
  table.purpose = "start, restart, inspect or stop a group of workers";
  table.usage = shell ? "[NAME] [flags]" : "[flags]";
  table.sections = {
      {"shape",
       {{"--gpus", "-g", Takes::Value, "LIST|all", "GPUs by nvidia-smi's numbers, in your order: 3,1"},
        {"--workers", "-n", Takes::Value, "N", "N CPU workers; with -g, N workers over those GPUs in turn"},
        {"--threads", "", Takes::Value, "N", "threads of each worker (default: cores / workers)"},
        {"--backend", "", Takes::Value, "NAME", "auto, shm, nccl or gloo"},
        {"--hosts", "-H", Takes::Value, "LIST", "several machines (later release)"},
        {"--slurm", "", Takes::Nothing, "", "workers of a Slurm job (later release)"},
        {"--app", "-a", Takes::Value, "NAME", "prepare the workers for a library: fastai; none leaves it"}}},
      {"lifetime",
       {{"--name", "", Takes::Value, "NAME", "the group's name (default: from the notebook or script)"},
        {"--attach", "", Takes::Value, "NAME", "join a running group as it is"},
        {"--restart", "-r", Takes::Nothing, "", "start the workers anew; their variables are lost"},
        {"--kill", "-k", Takes::Nothing, "", "stop the group"},
        {"--info", "-i", Takes::Nothing, "", "print the group's workers and state"},
        {"--on-exit", "", Takes::Value, "keep|stop", "when the client leaves (default keep)"},
        {"--idle", "", Takes::Value, "S", "end after S unused seconds, or 30m, 12h (default 12h; 0 = never)"},
        {"--timeout", "-t", Takes::Value, "S", "seconds for workers to start or stop (default 60)"}}},
      {"advanced",
       {{"--start", "", Takes::Value, "fork|exec", "copy a warm process, or run a fresh one (default fork)"},
        {"--env", "", Takes::ManyValues, "K=V", "set a variable in the workers; may be repeated"},
        {"--python", "", Takes::Value, "PATH", "the workers' Python (default: this one)"},
        {"--seed", "", Takes::Value, "N", "base of each rank's random seed (rank r: N + r)"},
        {"--settle", "", Takes::Value, "S", "after one rank fails, let the others run S seconds (default 10)"},
        {"--grace", "", Takes::Value, "S", "kill a rank that ignores an interrupt for S seconds (default never)"},
        {"--client", "", Takes::Value, "NAME", "your name towards the group (default: as the group's)"},
        {"--master-port", "", Takes::Value, "P", "port for torch.distributed (default: a free one)"},
        {"--gc", "", Takes::Value, "on|off", "collect garbage between cells (default on)"},
        {"--verbose", "-v", Takes::Nothing, "", "say more: seeds, ports, timings"}}}};
  if (!shell) {
    // Of a group that is there; a program has Group.restart(ranks=…) and Group.rebuild().
    table.sections.push_back(
        {"repair",
         {{"--ranks", "", Takes::Value, "LIST", "beside -r: only these workers anew, the others keep all: 1,2-3"},
          {"--rebuild", "", Takes::Nothing, "", "make torch's process groups again; variables stay"}}});
  }
  table.examples = {command + " -n 4               # four CPU workers",
                    command + " -g 3,1 -r          # start anew: rank 0 on GPU 3, rank 1 on GPU 1"};
  return table;
}

}  // namespace ddip::launch
