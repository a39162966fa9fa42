#include "ddip/base/strict_json.h"

#include <fmt/format.h>

#include <set>

namespace ddip {

using nlohmann::json;

json parse_strict_json(std::string_view text, int deepest) {
  std::vector<std::set<std::string>> seen;
  const auto check = [&](int depth, json::parse_event_t event, json& parsed) {
    if (depth > deepest) throw NotJson("it is nested too deeply");
    if (event == json::parse_event_t::object_start) seen.emplace_back();
    if (event == json::parse_event_t::object_end) seen.pop_back();
    if (event == json::parse_event_t::key && !seen.back().insert(parsed.get<std::string>()).second)
      throw NotJson(fmt::format("it has {:?} twice", parsed.get<std::string>()));
    return true;
  };
  try {
    return json::parse(text, check);
  } catch (const json::parse_error& error) {
    throw NotJson(fmt::format("it is no JSON, at byte {}", error.byte));
  } catch (const json::exception&) {
    throw NotJson("it is no JSON");
  }
}

}  // namespace ddip
