#include "command.h"
#include "ddip/base/error.h"
#include "ddip/launch/flag_values.h"
#include "python.h"
#include "tables.h"

namespace ddip::app {

using launch::Takes;

launch::FlagTable study_flags() {
  return {
      "ddip study",
      "train many times, compare, and say what was seen: staleness policies of pipelines",
      "staleness --out DIR [flags]",
      {{"what",
        {{"--tasks", "", Takes::Value, "LIST", "of vision,language (default: both)"},
         {"--policies", "", Takes::Value, "LIST", "as stash,msnag,stash@adamw (default: all of the schedule's)"},
         {"--seeds", "", Takes::Value, "N", "of each policy, at its best rate (default 5)"},
         {"--rates", "", Takes::Value, "LIST", "to choose from, times the task's usual rate (default 0.3,1,3)"},
         {"--sweep-seeds", "", Takes::Value, "N", "other seeds, for that choice (default 2)"},
         {"--steps", "", Takes::Value, "N", "of a run (default 200)"},
         {"--target", "", Takes::Value, "A", "accuracy whose time is taken (default: the task's)"},
         {"--quick", "", Takes::Nothing, "", "a look at the table, not a result: 2 seeds, 24 steps, one rate"}}},
       {"pipeline",
        {{"--stages", "", Takes::Value, "P", "how many (default 4)"},
         {"--schedule", "", Takes::Value, "NAME", "as async_1f1b, virtual_async, 2bw, paci (default async_1f1b)"},
         {"--accumulate", "", Takes::Value, "N", "micro-batches of a step (default 1)"},
         {"--micro-batches", "", Takes::Value, "M", "of a synchronous batch (default 8)"},
         {"--max-staleness", "", Takes::Value, "S", "of virtual_async"}}},
       {"simulated clock",
        {{"--cost", "", Takes::Value, "C", "forward and backward of a micro-batch on a stage (default 1)"},
         {"--link", "", Takes::Value, "X", "a message between two stages (default 0.5)"}}},
       {"result",
        {{"--out", "", Takes::Value, "DIR", "tables and pictures; runs that are there are not run again"}, kJsonFlag}},
       {"where",
        {{"--jobs", "", Takes::Value, "N", "runs at a time (default: one for each core)"},
         {"--python", "", Takes::Value, "PATH", "a Python with torch (default: this environment's)"}}}},
      {"ddip study staleness --out study", "ddip study staleness --quick --out look",
       "ddip study staleness --policies none,msnag,stash@adamw --seeds 10 --stages 8 --out study8"}};
}

// Training is Python's business; this only finds the study. Each has its own flags, and checks their values.
int study(const Context& context, const Arguments& arguments) {
  const launch::Flags flags(study_flags(), arguments);
  const auto& words = flags.words();
  if (words.empty()) throw ConfigError("ddip study: expected a study: staleness");
  launch::one_of({"ddip study " + launch::shown(words[0]), words[0]}, {"staleness"});
  const std::string place = "ddip study " + words[0];
  if (words.size() > 1) throw ConfigError(place + ": one word too many: " + launch::shown(words[1]));
  if (!flags.has("--out")) throw ConfigError(place + ": expected --out DIR");
  Arguments passed = {words[0]};
  for (const launch::FlagSection& section : study_flags().sections) {
    for (const launch::Flag& flag : section.flags) {
      if (!flags.has(flag.long_name) || flag.long_name == "--python") continue;
      passed.push_back(flag.takes == Takes::Nothing ? flag.long_name
                                                    : flag.long_name + "=" + flags.value(flag.long_name).text);
    }
  }
  const std::string asked = flags.has("--python") ? flags.value("--python").text : "";
  become_python_module(context, find_python(context, asked, place), "ddip.study.command", passed);
}

}  // namespace ddip::app
