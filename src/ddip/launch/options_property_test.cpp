// Whatever is typed, the answer is options, help, or one line: never another exception, never a crash.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "ddip/base/error.h"
#include "ddip/launch/cell_options.h"
#include "ddip/launch/group_options.h"

namespace ddip::launch {
namespace {

// Fragments that reach deep into the parser, CLI11's own special spellings among them.
const std::vector<std::string> kFragments = {
    "-n",       "-g",    "-k",        "-r",         "-i",          "-v",        "-t",       "-H",    "-a",
    "-S",       "-q",    "-h",        "-",          "--",          "++",        "---",      "-=",    "--=",
    "-1",       "1e9",   "0",         "2",          "all",         "3,1",       "0-2",      "{}",    "[]",
    "[a,b]",    "%%",    "\"",        "'",          "\\",          "",          " ",        "=",     "K=V",
    "remote",   "local", "--async",   "--ranks",    "--see",       "--out",     "--to",     "both",  "--name",
    "--attach", "--env", "--env=A=B", "--idle",     "12h",         "--backend", "auto",     "gloo",  "nccl",
    "--gc",     "on",    "--seed",    "--workers=", "--workers=2", "-n2",       "-rv",      "-rvn2", "--quiet=true",
    "-!",       "--!x",  "/n",        "/help",      "true",        "false",     "--config", "@file", "`x`",
    "f\"x\""};

rc::Gen<std::vector<std::string>> arguments() {
  const auto fragment = rc::gen::elementOf(kFragments);
  const auto glued = rc::gen::apply([](std::string a, const std::string& b) { return a + b; }, fragment, fragment);
  const auto flag = rc::gen::elementOf(group_flag_names());
  return rc::gen::container<std::vector<std::string>>(
      rc::gen::oneOf(fragment, glued, flag, rc::gen::arbitrary<std::string>()));
}

template <class Parse>
void answers_properly(Parse&& parse) {
  try {
    parse();
  } catch (const HelpRequested& help) {
    RC_ASSERT(!help.text.empty());
  } catch (const ConfigError& error) {
    const std::string message = error.what();
    RC_LOG() << message;
    RC_ASSERT(message.find('\n') == std::string::npos);
    RC_ASSERT(message.find(": ") != std::string::npos);
    RC_ASSERT(message.size() < 500U);
    RC_ASSERT(message.find("you should not see") == std::string::npos);
  }
}

TEST(OptionsProperty, a_group_line_is_options_help_or_one_line) {
  EXPECT_TRUE(rc::check([] {
    const auto args = *arguments();
    answers_properly([&] { parse_group_flags(args, "%makedip"); });
    answers_properly([&] { parse_group_flags(args, "ddip up"); });
  }));
}

TEST(OptionsProperty, a_cell_line_is_options_help_or_one_line) {
  EXPECT_TRUE(rc::check([] {
    const auto args = *arguments();
    answers_properly([&] { parse_cell_flags(args); });
  }));
}

TEST(OptionsProperty, one_flag_and_one_value_are_answered_for_every_pair) {
  for (const std::string& flag : group_flag_names()) {
    for (const std::string& value : kFragments) {
      for (const std::vector<std::string>& args : {std::vector{flag, value}, std::vector{flag + "=" + value}}) {
        try {
          parse_group_flags(args, "%makedip");
        } catch (const ConfigError&) {
        } catch (const HelpRequested&) {
        } catch (...) {
          ADD_FAILURE() << flag << " " << value;
        }
      }
    }
  }
}

}  // namespace
}  // namespace ddip::launch
