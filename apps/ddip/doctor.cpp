#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "command.h"
#include "doctor_checks.h"
#include "python.h"
#include "tables.h"

namespace ddip::app {

using nlohmann::json;

launch::FlagTable doctor_flags() {
  return {"ddip doctor",
          "is this machine ready? versions, GPUs, folders, limits, each with a remedy",
          "[--python PATH] [--json]",
          {{"what",
            {{"--python", "", launch::Takes::Value, "PATH", "the Python to look at (default: this environment's)"}}},
           {"form", {kJsonFlag}}},
          {"ddip doctor", "ddip doctor --json | jq '.checks[] | select(.status != \"ok\")'",
           "# exit 1 if a check failed; warnings do not count"}};
}

namespace {

const char* word_of(Verdict verdict) {
  return verdict == Verdict::ok ? "ok" : verdict == Verdict::warn ? "warn" : "fail";
}

void print(const std::vector<Check>& checks, const Style& style) {
  for (const Check& check : checks) {
    const std::string word = fmt::format("{:<4}", word_of(check.verdict));
    const std::string painted = check.verdict == Verdict::ok     ? style.green(word)
                                : check.verdict == Verdict::warn ? style.yellow(word)
                                                                 : style.red(word);
    fmt::print("{}  {:<14} {}\n", painted, check.name, check.text);
    if (!check.remedy.empty()) fmt::print("{:<21}→ {}\n", "", check.remedy);
  }
  std::map<Verdict, size_t> counts;
  for (const Check& check : checks) ++counts[check.verdict];
  fmt::print("{} ok, {}, {} failed\n", counts[Verdict::ok], counted(counts[Verdict::warn], "warning"),
             counts[Verdict::fail]);
}

}  // namespace

int doctor(const Context& context, const Arguments& arguments) {
  const launch::Flags flags(doctor_flags(), arguments);
  refuse_words(flags);
  const std::string python =
      find_python(context, flags.has("--python") ? flags.value("--python").text : "", flags.command());
  std::vector<Check> checks = {{"ddip", Verdict::ok, fmt::format("{} ({})", DDIP_VERSION, context.program.string())}};
  for (auto& part : {check_python(context, python), check_gpus(context), check_folders(context), check_limits()})
    checks.insert(checks.end(), part.begin(), part.end());
  const bool well =
      std::none_of(checks.begin(), checks.end(), [](const Check& check) { return check.verdict == Verdict::fail; });
  if (flags.has("--json")) {
    json listed = json::array();
    for (const Check& check : checks)
      listed.push_back(
          {{"name", check.name}, {"status", word_of(check.verdict)}, {"text", check.text}, {"remedy", check.remedy}});
    print_json({{"ok", well}, {"checks", listed}});
  } else {
    print(checks, context.out);
  }
  return well ? 0 : 1;
}

}  // namespace ddip::app
