#include <fmt/format.h>

#include "command.h"
#include "explanation.h"
#include "find_group.h"
#include "tables.h"

namespace ddip::app {

using wire::json;

launch::FlagTable why_flags() {
  return {
      "ddip why",
      "what every rank is doing now, and who is missing",
      "[NAME] [--stacks] [--json]",
      {{"form", {{"--stacks", "", launch::Takes::Nothing, "", "the whole Python stack of each rank too"}, kJsonFlag}}},
      {"ddip why             # a rank waits in all_reduce: which one never came, and where is it?",
       "ddip why train --json"}};
}

int why(const Context& context, const Arguments& arguments) {
  const launch::Flags flags(why_flags(), arguments);
  auto client = connect(find_group(context, flags.command(), name_word(flags)));
  json answer = client->request(wire::Type::why, json::object(), kAnswer);
  const std::vector<std::string> lines = explanation(answer, client->welcome().value("journal", ""));
  if (flags.has("--json")) {
    answer["explanation"] = lines;
    return print_json(answer);
  }
  for (const std::string& line : lines) fmt::print("{}\n", line.starts_with("rank ") ? line : context.out.bold(line));
  if (flags.has("--stacks")) {
    for (const json& rank : answer.at("ranks"))
      fmt::print("\nrank {}, innermost first:\n{}", rank.value("rank", 0), rank.value("stack", "  (no answer)\n"));
  }
  return 0;
}

}  // namespace ddip::app
