#include "command.h"
#include "ddip/base/error.h"
#include "python.h"
#include "tables.h"

namespace ddip::app {

using launch::Takes;

launch::FlagTable partition_flags() {
  return {"ddip partition",
          "cut a model into the stages of a pipeline: a plan, a table, a picture",
          "FILE.py:FACTORY --stages P --out plan.json [flags]",
          {{"what",
            {{"--stages", "", Takes::Value, "P", "how many devices"},
             {"--input", "", Takes::ManyValues, "SHAPE", "a micro-batch: 8x3x32x32, 8x128:int64 (default: FACTORY's)"},
             {"--whole", "", Takes::ManyValues, "CLASS", "modules of this class are one layer each"}}},
           {"how",
            {{"--mixed", "", Takes::Nothing, "", "stages that are not adjacent may share a device"},
             {"--mirrored", "", Takes::Nothing, "", "and no skip connection crosses a link, whatever that costs"},
             {"--memory", "", Takes::Value, "CAP", "of one device: 512MiB, 8GiB"},
             {"--recompute", "", Takes::Nothing, "", "stages run their forward again instead of keeping activations"},
             {"--link", "", Takes::Value, "MB/S", "speed of the links between devices (default: they cost nothing)"},
             {"--micro-batches", "", Takes::Value, "M", "between two flushes, for the predicted bubble (default 8)"}}},
           {"result",
            {{"--out", "", Takes::Value, "FILE", "the plan, which may be edited"},
             {"--svg", "", Takes::Value, "FILE", "a picture of the cut"},
             kJsonFlag}},
           {"where", {{"--python", "", Takes::Value, "PATH", "a Python with torch (default: this environment's)"}}}},
          {"ddip partition net.py:make --stages 4 --out plan.json --svg cut.svg",
           "# make() returns a model, or (model, micro-batch)",
           "ddip partition unet.py:make --stages 2 --mirrored --whole Block --out plan.json"}};
}

// Tracing and measuring a model is Python's business; this only finds it.
int partition(const Context& context, const Arguments& arguments) {
  const launch::Flags flags(partition_flags(), arguments);
  if (flags.words().size() != 1 || flags.words().front().find(".py:") == std::string::npos)
    throw ConfigError("ddip partition: expected one FILE.py:FACTORY; ddip partition -h lists the flags");
  for (const char* needed : {"--stages", "--out"})
    if (!flags.has(needed))
      throw ConfigError(std::string("ddip partition: expected ") + needed + "; ddip partition -h lists the flags");
  launch::whole_number(flags.value("--stages"), {"a number of stages", 1, 4096});
  if (flags.has("--micro-batches"))
    launch::whole_number(flags.value("--micro-batches"), {"a number of micro-batches", 1, 1'000'000});
  Arguments words = {flags.words().front()};
  for (const launch::FlagSection& section : partition_flags().sections) {
    for (const launch::Flag& flag : section.flags) {
      if (!flags.has(flag.long_name) || flag.long_name == "--python") continue;
      if (flag.takes == Takes::Nothing)
        words.push_back(flag.long_name);
      else
        for (const launch::FlagText& value : flags.values(flag.long_name))
          words.push_back(flag.long_name + "=" + value.text);
    }
  }
  const std::string python =
      find_python(context, flags.has("--python") ? flags.value("--python").text : "", "ddip partition");
  become_python_module(context, python, "ddip.pipeline.partition_command", words);
}

}  // namespace ddip::app
