// For tests: the message of the ConfigError that a call throws, checked to be one line.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "ddip/base/error.h"

namespace ddip {

template <class Call>
std::string config_error(Call&& call) {
  try {
    call();
  } catch (const ConfigError& error) {
    const std::string message = error.what();
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    EXPECT_LT(message.size(), 400U) << message;
    return message;
  }
  ADD_FAILURE() << "nothing was refused";
  return "";
}

}  // namespace ddip
