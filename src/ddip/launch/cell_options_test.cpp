#include "ddip/launch/cell_options.h"

#include <gtest/gtest.h>

#include "ddip/base/testing/one_line.h"

namespace ddip::launch {
namespace {

using Args = std::vector<std::string>;

TEST(CellOptions, run_on_all_workers_unless_told_otherwise) {
  const CellOptions options = parse_cell_flags({});
  EXPECT_EQ(options.place, Place::Remote);
  EXPECT_EQ(options.ranks, "all");
  EXPECT_EQ(options.see, "all");
  EXPECT_FALSE(options.quiet || options.plain || options.verbose || options.async);
}

TEST(CellOptions, place_is_a_word_or_the_older_flag) {
  EXPECT_EQ(parse_cell_flags({"remote"}).place, Place::Remote);
  EXPECT_EQ(parse_cell_flags({"local"}).place, Place::Local);
  EXPECT_EQ(parse_cell_flags({"-v", "everywhere"}).place, Place::Everywhere);
  EXPECT_EQ(parse_cell_flags({"--to", "local"}).place, Place::Local);
  EXPECT_EQ(parse_cell_flags({"--to=both"}).place, Place::Everywhere);
}

TEST(CellOptions, every_flag_reaches_its_field) {
  const CellOptions options = parse_cell_flags({"--ranks", "0,2-3", "-S", "1", "--out", "res", "--plain", "-v"});
  EXPECT_EQ(options.ranks, "0,2-3");
  EXPECT_EQ(options.see, "1");
  EXPECT_EQ(options.out, "res");
  EXPECT_TRUE(options.plain && options.verbose);
  EXPECT_TRUE(parse_cell_flags({"-q"}).quiet);
  EXPECT_EQ(parse_cell_flags({"-S0-1"}).see, "0-1");
}

TEST(CellOptions, async_may_name_its_variable) {
  EXPECT_TRUE(parse_cell_flags({"--async"}).async);
  EXPECT_EQ(parse_cell_flags({"--async"}).async_name, "");
  EXPECT_EQ(parse_cell_flags({"--async", "training"}).async_name, "training");
  EXPECT_EQ(parse_cell_flags({"--async=training"}).async_name, "training");
  EXPECT_EQ(parse_cell_flags({"--async", "-q"}).async_name, "");
}

TEST(CellOptions, a_place_after_async_stays_a_place) {
  const CellOptions options = parse_cell_flags({"--async", "everywhere"});
  EXPECT_EQ(options.place, Place::Everywhere);
  EXPECT_TRUE(options.async);
  EXPECT_EQ(options.async_name, "");
}

TEST(CellOptions, bad_lines_are_refused_in_one_line) {
  struct Case {
    Args args;
    std::string message;
  };
  const std::string variable = "expected a Python variable's name";
  const std::string local = " has no meaning; expected one of the two";
  const std::vector<Case> cases = {
      {{"remtoe"}, "remtoe: expected remote|local|everywhere; did you mean remote?"},
      {{"remote", "local"}, "local: expected one place, and one is given already"},
      {{"local", "--to", "remote"}, "--to remote: expected one place, and one is given already"},
      {{"--to", "bothe"}, "--to bothe: expected remote|local|both; did you mean both?"},
      {{"--async", "local", "remote"}, "local: expected one place, and one is given already"},
      {{"--ranks", "3-1"}, "--ranks 3-1: the range 3-1 is reversed; expected 1-3"},
      {{"--ranks", "-1"}, "--ranks -1: -1 is not a rank number; expected rank numbers such as 0,2-3, or all"},
      {{"-S", "x"}, "-S x: x is not a rank number; expected rank numbers such as 0,2-3, or all"},
      {{"--ranks"}, "--ranks: expected a value, --ranks LIST|all"},
      {{"--out", "a-b"}, "--out a-b: " + variable},
      {{"--out", "for"}, "--out for: " + variable},
      {{"--out"}, "--out: expected a value, --out NAME"},
      {{"--async", "2x"}, "--async 2x: " + variable},
      {{"--async", "{}"}, "--async {}: " + variable},
      {{"--quiet=no"}, "--quiet=no: expected no value; --quiet takes none"},
      {{"--rank", "0"}, "--rank: there is no such flag; did you mean --ranks?"},
      {{"-z"}, "-z: there is no such flag; %%dip -h lists the flags"},
      {{"-q", "--see", "0"}, "-q --see: one hides output, the other shows it; expected one of the two"},
      {{"--async", "c", "--out", "r"},
       "--async --out: the cell is not done when the line ends; NAME.results() has them later; "
       "expected one of the two"},
      {{"local", "--ranks", "0"}, "local --ranks: a local cell runs on no worker, so --ranks" + local},
      {{"local", "--async"}, "local --async: a local cell runs on no worker, so --async" + local},
      {{"--check", "x,,y"}, "--check x,,y: expected names of Python variables, a,b,c"},
      {{"--check", "x", "--async"},
       "--async --check: the cell is not done when the line ends; expected one of the two"},
      {{"local", "--check", "x"}, "local --check: a local cell runs on no worker, so --check" + local},
      {{"-a", "f g"}, "-a 'f g': expected a Python variable's name"},
  };
  for (const Case& c : cases) EXPECT_EQ(config_error([&] { parse_cell_flags(c.args); }), "%%dip " + c.message);
}

TEST(CellOptions, help_names_every_place_and_ends_with_examples) {
  try {
    parse_cell_flags({"-h"});
    FAIL() << "no help";
  } catch (const HelpRequested& help) {
    EXPECT_EQ(help.text, cell_help());
    EXPECT_NE(help.text.find("[remote|local|everywhere]"), std::string::npos);
    EXPECT_TRUE(help.text.ends_with("  %%dip --async training\n"));
  }
}

}  // namespace
}  // namespace ddip::launch
