// JSON from a stranger: one value and nothing behind it, no key twice (the library would keep the last one), not deeper
// than somebody would write by hand.
#pragma once

#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string_view>

namespace ddip {

struct NotJson : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Throws NotJson: what is wrong, as the end of a sentence.
nlohmann::json parse_strict_json(std::string_view text, int deepest);

}  // namespace ddip
