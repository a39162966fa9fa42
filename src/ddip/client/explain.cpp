#include "ddip/client/explain.h"

#include <fmt/format.h>

#include <map>
#include <sstream>

#include "ddip/client/difference.h"

namespace ddip::client {
namespace {

using nlohmann::json;

// `  File "x.py", line 3 in f` → `x.py, line 3 in f`
std::string tidy(const std::string& line) {
  size_t open = line.find('"'), close = line.rfind('"');
  if (open == std::string::npos || close == open) return line;
  return line.substr(open + 1, close - open - 1) + line.substr(close + 1);
}

bool is_library(const std::string& line) {
  for (const char* part : {"/site-packages/", "/dist-packages/", "/lib/python", "/ddip/worker/", "<frozen"}) {
    if (line.find(part) != std::string::npos) return true;
  }
  return false;
}

// The same collective: operation, group and how many came before it.
std::string key_of(const json& collective) {
  return fmt::format("{}|{}|{}", collective.value("operation", ""), collective.value("group", ""),
                     collective.value("number", 0));
}

std::string place(const json& rank) {
  if (rank.contains("silent")) return rank.value("silent", "");
  if (rank.value("cell", 0) == 0) return "idle";
  std::string frame = user_frame(rank.value("stack", ""));
  return frame.empty() ? "in native code, without a Python frame" : frame;
}

std::string describe(const json& rank) {
  std::string text = fmt::format("rank {}: {}", rank.value("rank", -1), place(rank));
  if (rank.contains("collective")) {
    const json& collective = rank.at("collective");
    const std::string group = collective.value("group", "");
    text += fmt::format("; in {} number {}{} for {:.1f} s", collective.value("operation", ""),
                        collective.value("number", 0), group.empty() ? "" : " of group '" + group + "'",
                        collective.value("seconds", 0.0));
  } else if (rank.contains("seconds")) {
    text += fmt::format("; cell {} runs for {:.1f} s", rank.value("cell", 0), rank.value("seconds", 0.0));
  }
  for (const json& waiting : rank.value("communicators", json::array())) {
    if (waiting.is_string()) text += "; waits in " + waiting.get<std::string>();
  }
  if (rank.contains("native") && !rank.at("native").empty())
    text += fmt::format("; native: {}", rank.value("native", ""));
  return text;
}

}  // namespace

std::string user_frame(const std::string& stack) {
  std::istringstream lines(stack);
  std::string line, first;
  while (std::getline(lines, line)) {
    if (line.find("File \"") == std::string::npos) continue;
    if (first.empty()) first = line;
    if (!is_library(line)) return tidy(line);
  }
  return first.empty() ? "" : tidy(first);
}

std::vector<std::string> explain(const json& why) {
  std::vector<std::string> lines;
  std::map<std::string, std::vector<int>> waiting;  // by collective
  std::map<std::string, std::string> names;
  for (const json& rank : why.at("ranks")) {
    lines.push_back(describe(rank));
    if (!rank.contains("collective")) continue;
    waiting[key_of(rank.at("collective"))].push_back(rank.value("rank", -1));
    names[key_of(rank.at("collective"))] = rank.at("collective").value("operation", "");
  }
  for (const auto& [key, ranks] : waiting) {
    std::vector<int> missing;
    std::string where;
    for (const json& rank : why.at("ranks")) {
      int number = rank.value("rank", -1);
      if (std::find(ranks.begin(), ranks.end(), number) != ranks.end()) continue;
      missing.push_back(number);
      where += fmt::format(
          "{}rank {} is {}", where.empty() ? "" : "; ", number,
          rank.contains("collective") ? "in " + rank.at("collective").value("operation", "") : "at " + place(rank));
    }
    if (!missing.empty()) {
      lines.push_back(fmt::format("{} waits on rank{} {} for rank{} {}, which never arrived: {}", names.at(key),
                                  ranks.size() > 1 ? "s" : "", rank_list(ranks), missing.size() > 1 ? "s" : "",
                                  rank_list(missing), where));
    }
  }
  return lines;
}

}  // namespace ddip::client
