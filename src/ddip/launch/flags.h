// One command's flags as a table: it is read, checked against what a user wrote, and printed as help.
// What a value must look like is the caller's business (flag_values.h).
#pragma once

#include <map>
#include <string>
#include <vector>

#include "ddip/launch/flag_values.h"

namespace ddip::launch {

// Thrown for -h/--help; not an error: print the text, exit 0.
struct HelpRequested {
  std::string text;
};

enum class Takes { Nothing, Value, OptionalValue, ManyValues };

struct Flag {
  std::string long_name;   // "--workers": also the flag's key
  std::string short_name;  // "-n", or ""
  Takes takes = Takes::Nothing;
  std::string value_name;  // "N", for help
  std::string help;        // one short line
};

struct FlagSection {
  std::string title;
  std::vector<Flag> flags;
};

struct FlagTable {
  std::string command;  // "%makedip": every message begins with it
  std::string purpose;  // one line of help
  std::string usage;    // what follows the command: "[flags]"
  std::vector<FlagSection> sections;
  std::vector<std::string> examples;
};

class Flags {
 public:
  // Reads `args` (without the command itself). -h/--help belongs to every table and wins over everything but an
  // unreadable line. ConfigError, one line: unknown flag (with the nearest), a missing or unwanted value, a flag
  // given twice. HelpRequested: -h.
  Flags(const FlagTable& table, const std::vector<std::string>& args);

  bool has(const std::string& long_name) const;

  // The value, with its place for messages. Text is "" for a flag without one. REQUIRES: has(long_name).
  FlagText value(const std::string& long_name) const;
  std::vector<FlagText> values(const std::string& long_name) const;

  // As the user spelled it: "-n" or "--workers".
  std::string spelling(const std::string& long_name) const;

  // What was neither a flag nor a flag's value, in order.
  const std::vector<std::string>& words() const { return words_; }

  const std::string& command() const { return command_; }

 private:
  std::string command_;
  std::map<std::string, std::vector<std::string>> values_;  // by long name; present only if given
  std::map<std::string, std::string> spelling_;
  std::vector<std::string> words_;
};

std::string help_text(const FlagTable& table);

}  // namespace ddip::launch
