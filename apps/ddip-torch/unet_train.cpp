#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>

#include "ddip/base/error.h"
#include "ddip/models/unet/device.h"
#include "ddip/models/unet/held_out.h"
#include "ddip/models/unet/trainer.h"
#include "unet.h"

namespace ddip::torch_app {

using launch::Takes;
using models::unet::RunFolder;
using models::unet::Settings;
using models::unet::Trainer;
namespace fs = std::filesystem;

launch::FlagTable train_flags() {
  return {"ddip unet train",
          "train on one or several ranks; checkpoints go into a folder",
          "--data DIR --out RUN [flags] | --out RUN --resume",
          {{"what",
            {{"--data", "", Takes::Value, "DIR", "events, as ddip data synth makes them"},
             {"--out", "", Takes::Value, "RUN", "a new folder for this run"},
             {"--resume", "", Takes::Nothing, "",
              "go on with the run in RUN, if there is one, with its own settings; -n may be another"},
             {"--config", "", Takes::Value, "FILE", "JSON with the settings below: {\"epochs\": 3}; flags beat it"},
             {"--workers", "-n", Takes::Value, "N", "ranks on this machine (default 1)"}}},
           {"settings", setting_flags()}},
          {"ddip data synth --out events --events 1000",
           "ddip unet train --data events --out run -n 2 --epochs 5 --width 8", "ddip unet train --out run --resume"}};
}

namespace {

std::atomic<int> asked_by_signal = 0;

// The first asks for an end behind the step that is under way; a second one ends the process.
void end_behind_this_step() {
  struct sigaction action{};
  action.sa_handler = [](int signal) {
    if (asked_by_signal.exchange(signal) != 0) ::_exit(128 + signal);
  };
  ::sigemptyset(&action.sa_mask);
  for (int signal : {SIGINT, SIGTERM}) ::sigaction(signal, &action, nullptr);
}

int train(Context& context, const fs::path& run, bool resume, bool bar) {
  end_behind_this_step();
  share_cores(context.world_size());
  const char* local = std::getenv("LOCAL_RANK");
  Trainer trainer(
      context, RunFolder::open(run),
      {.local_rank = local ? std::atoi(local) : context.rank(), .resume = resume, .bar = bar, .should_end = [] {
         return asked_by_signal != 0;
       }});
  if (trainer.run() == Trainer::Ending::asked) return 128 + (asked_by_signal == 0 ? SIGTERM : asked_by_signal.load());
  if (context.rank() == 0 && (RunFolder::open(run).store().last() || RunFolder::open(run).store().best()))
    fmt::print("ddip unet evaluate --run {0} --data DIR shows how good it is\n", run.string());
  return 0;
}

// A run that goes on does so with its own settings: one that is asked for and different is a mistake.
void require_same(const Settings& begun, const Settings& asked, const fs::path& run) {
  const std::string difference = begun.difference(asked);
  if (difference.empty()) return;
  throw ConfigError(fmt::format("ddip unet train --resume: {} was begun with other settings: {}; expected the same",
                                run.string(), difference));
}

// Everything that can be refused is, before a folder or a process is made. Whether the run goes on.
bool prepare(const launch::Flags& flags, const fs::path& run) {
  std::error_code error;
  if (flags.has("--resume") && fs::exists(run / "settings.json", error)) {
    const RunFolder folder = RunFolder::open(run);
    Settings asked = settings_of(flags, folder.settings());
    if (flags.has("--data")) asked.data = fs::absolute(flags.value("--data").text);
    require_same(folder.settings(), asked, run);
    models::unet::require_trainable(folder.settings(), data::open_events(folder.settings().data)->shape().events);
    return true;
  }
  Settings settings = settings_of(flags, {});
  settings.data = fs::absolute(needed(flags, "--data").text);
  models::unet::device_of(settings.device, 0);
  settings.events = data::open_events(settings.data)->shape().events;
  models::unet::require_trainable(settings, settings.events);
  RunFolder::create(run, settings);
  return false;
}

}  // namespace

int unet_train(const std::string& ddip, const launch::Flags& flags) {
  const fs::path run = needed(flags, "--out").text;
  const uint64_t ranks =
      flags.has("--workers") ? launch::whole_number(flags.value("--workers"), {"a number of ranks", 1, 1024}) : 1;
  const bool resume = prepare(flags, run);
  const bool bar = ::isatty(STDERR_FILENO) == 1 && ::isatty(STDOUT_FILENO) == 1;
  if (ranks == 1) {
    Context context = Context::from_environment();
    return train(context, run, resume, bar);
  }
  // One process for each rank; this one becomes the program that watches over them.
  Arguments words = {ddip,
                     "run",
                     "-n",
                     std::to_string(ranks),
                     "--no-store",
                     "--no-prefix",
                     "--grace",
                     "30",
                     "--",
                     fs::read_symlink("/proc/self/exe").string(),
                     "unet",
                     "rank",
                     run.string(),
                     resume ? "resume" : "begin",
                     bar ? "bar" : "lines"};
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  ::execvp(pointers[0], pointers.data());
  throw_errno("ddip unet train: " + ddip);
}

int unet_rank(const Arguments& arguments) {
  if (arguments.size() != 3) throw ConfigError("ddip unet rank: people call ddip unet train");
  Context context = Context::from_environment();
  return train(context, arguments[0], arguments[1] == "resume", arguments[2] == "bar");
}

}  // namespace ddip::torch_app
