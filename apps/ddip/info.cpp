#include <fmt/format.h>

#include <chrono>

#include "command.h"
#include "describe_group.h"
#include "find_group.h"
#include "tables.h"

namespace ddip::app {

using wire::json;

launch::FlagTable info_flags() {
  return {"ddip info",
          "a group's workers, running cells and settings",
          "[NAME] [--json]",
          {{"form", {kJsonFlag}}},
          {"ddip info", "ddip info train --json | jq '.ranks[].pid'"}};
}

std::string life_of(const json& info) {
  const double idle = info.value("idle", 0.0);
  const std::string end = idle > 0 ? fmt::format(" and ends after {} without use (--idle)", duration(idle)) : "";
  return info.value("on_exit", "") == "stop"
             ? "ends with the process that started it" + (idle > 0 ? ", or" + end.substr(4) : "")
             : "outlives this shell" + end;
}

std::string describe_group(const json& info, const Style& style) {
  const double now = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  std::string text = fmt::format("{}: {}; {}, up {}; it {}\n", style.bold("group " + info.value("name", "")),
                                 info.value("sentence", ""), info.value("phase", ""),
                                 duration(now - info.value("started", now)), life_of(info));
  for (const json& rank : info.at("ranks")) {
    const std::string status = rank.value("status", "");
    const std::string why = rank.value("why", "");
    const int pid = rank.value("pid", 0);  // 0: there is no process
    text += fmt::format("  rank {}  {}{}  {}{}\n", rank.value("rank", 0),
                        status == "ready" ? style.green(status) : style.red(status),
                        pid == 0 ? "" : fmt::format("  pid {}", pid), rank.value("device", ""),
                        why.empty() || status == "ready" ? "" : ": " + why);
  }
  for (const json& cell : info.at("cells")) {
    text +=
        fmt::format("  cell {} runs for {} on {}: {}\n", cell.value("cell", 0), duration(cell.value("seconds", 0.0)),
                    ranks_in_words(cell.at("open").get<std::vector<int>>()), one_line(cell.value("line", "")));
  }
  const json agent = info.value("agent", json::object());
  text += fmt::format("  coordinator pid {}, workers by {}, {}, torch.distributed at 127.0.0.1:{} ({})\n",
                      info.value("pid", 0), agent.value("start", "?"),
                      counted(info.at("clients").size() - 1, "other client"), info.value("port", 0),
                      info.value("backend", ""));
  text += fmt::format("  python {}\n  journal {}\n", info.value("python", ""), info.value("journal", ""));
  if (const std::string trouble = info.value("trouble", ""); !trouble.empty())
    text += style.red("  journal: " + trouble) + "\n";
  return text;
}

int info(const Context& context, const Arguments& arguments) {
  const launch::Flags flags(info_flags(), arguments);
  auto client = connect(find_group(context, flags.command(), name_word(flags)));
  const json answer = client->request(wire::Type::info, json::object(), kAnswer);
  if (flags.has("--json")) return print_json(answer);
  fmt::print("{}", describe_group(answer, context.out));
  return 0;
}

}  // namespace ddip::app
