// What the commands' flags have in common.
#pragma once

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "ddip/base/error.h"
#include "ddip/launch/flags.h"

namespace ddip::app {

inline const launch::Flag kJsonFlag{"--json", "", launch::Takes::Nothing, "", "the answer as JSON, for programs"};

inline void refuse_words(const launch::Flags& flags) {
  if (flags.words().empty()) return;
  const std::string& word = flags.words().front();
  launch::refuse({flags.command() + " " + launch::shown(word), word},
                 "expected flags only; " + flags.command() + " -h lists them");
}

inline int print_json(const nlohmann::json& answer) {
  fmt::print("{}\n", answer.dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
  return 0;
}

}  // namespace ddip::app
