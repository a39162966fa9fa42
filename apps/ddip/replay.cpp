#include "command.h"
#include "ddip/base/error.h"
#include "python.h"
#include "tables.h"

namespace ddip::app {

launch::FlagTable replay_flags() {
  return {"ddip replay",
          "compute a pipeline's run again from its ledger, and compare",
          "LEDGER [--program FILE.py:factory] [--python PATH] [--json]",
          {{"how",
            {{"--program", "", launch::Takes::Value, "FILE:NAME",
              "a function that gives (stages, loss, batches), if not the ledger's"},
             {"--python", "", launch::Takes::Value, "PATH", "a Python with torch"},
             kJsonFlag}}},
          {"ddip replay run/ledger.jsonl", "ddip replay ledger.jsonl --program train.py:pipeline",
           "# says identical, or the first difference (exit 1)"}};
}

// The interpreter is Python (ddip/pipeline/replay.py): it must share no code with what ran.
int replay(const Context& context, const Arguments& arguments) {
  const launch::Flags flags(replay_flags(), arguments);
  if (flags.words().size() != 1) throw ConfigError("ddip replay: expected one LEDGER");
  const std::string asked = flags.has("--python") ? flags.value("--python").text : "";
  Arguments words = {flags.words().front()};
  if (flags.has("--program")) words.insert(words.end(), {"--program", flags.value("--program").text});
  if (flags.has("--json")) words.emplace_back("--json");
  become_python_module(context, find_python(context, asked, "ddip replay"), "ddip.pipeline.replay_command", words);
}

}  // namespace ddip::app
