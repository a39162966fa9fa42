#include "ddip/launch/flags.h"

#include <CLI/CLI.hpp>  // only here: it is slow to compile, and its messages are not ours
#include <algorithm>
#include <cstddef>
#include <exception>
#include <string_view>

#include "ddip/base/check.h"
#include "ddip/base/error.h"
#include "ddip/base/nearest_name.h"

namespace ddip::launch {
namespace {

const Flag kHelp{"--help", "-h", Takes::Nothing, "", "print this"};

std::vector<Flag> all_flags(const FlagTable& table) {
  std::vector<Flag> flags;
  for (const FlagSection& section : table.sections) {
    flags.insert(flags.end(), section.flags.begin(), section.flags.end());
  }
  flags.push_back(kHelp);
  return flags;
}

std::vector<std::string> long_names(const std::vector<Flag>& flags) {
  std::vector<std::string> names;
  for (const Flag& flag : flags) names.push_back(flag.long_name);
  return names;
}

// Where CLI11 would guess in silence, or ignore the rest of the line, we ask.
void refuse_the_ambiguous(const FlagTable& table, const std::vector<Flag>& flags, const std::string& arg) {
  const FlagText place{table.command + " " + shown(arg), arg};
  if (arg == "--" || arg == "++") refuse(place, "expected a flag" + (" (" + table.command) + " -h lists them)");
  const std::size_t equals = arg.find('=');
  for (const Flag& flag : flags) {
    if (arg == flag.long_name.substr(1)) refuse(place, "one dash too few; did you mean " + flag.long_name + "?");
    if (equals == std::string::npos || arg.substr(0, equals) != flag.long_name) continue;
    if (flag.takes == Takes::Nothing) refuse(place, "expected no value; " + flag.long_name + " takes none");
    if (equals + 1 == arg.size()) refuse(place, "expected a value after =, " + flag.long_name + "=" + flag.value_name);
  }
}

[[noreturn]] void refuse_unknown(const FlagTable& table, const std::vector<Flag>& flags, const std::string& arg) {
  const std::string name = arg.substr(0, arg.find('='));
  // "-wrokers" and "-workers" mean a long flag as much as "--wrokers" does.
  const bool one_dash = name.size() > 2 && name[1] != '-';
  std::string near = did_you_mean(one_dash ? "-" + name : name, long_names(flags));
  if (near.empty()) near = "; " + table.command + " -h lists the flags";
  throw ConfigError(table.command + " " + shown(name) + ": there is no such flag" + near);
}

void declare(CLI::App& app, const Flag& flag) {
  const std::string names = flag.short_name.empty() ? flag.long_name : flag.short_name + "," + flag.long_name;
  if (flag.takes == Takes::Nothing) {
    app.add_flag(names);
    return;
  }
  // 0 to 1 rather than 1: then "--name -v" lacks a value instead of being named "-v"; "-n -1" still has one.
  app.add_option(names)->expected(0, 1)->allow_extra_args(false)->take_all();
}

std::string spelled(const Flag& flag, const std::vector<std::string>& args) {
  const bool in_full = std::any_of(args.begin(), args.end(), [&](const std::string& arg) {
    return arg == flag.long_name || arg.starts_with(flag.long_name + "=");
  });
  return in_full || flag.short_name.empty() ? flag.long_name : flag.short_name;
}

void check_count(const std::string& command, const Flag& flag, const std::string& spelling,
                 const std::vector<std::string>& values) {
  if (flag.takes == Takes::Nothing) return;
  const std::string place = command + " " + spelling + ": ";
  if (flag.takes != Takes::ManyValues && values.size() > 1) {
    throw ConfigError(place + "given " + std::to_string(values.size()) + " times (" + shown(values[0]) + ", then " +
                      shown(values[1]) + "); expected once");
  }
  const bool lacking = std::any_of(values.begin(), values.end(), [](const std::string& v) { return v.empty(); });
  if (lacking && flag.takes != Takes::OptionalValue) {
    throw ConfigError(place + "expected a value, " + spelling + " " + flag.value_name);
  }
}

}  // namespace

Flags::Flags(const FlagTable& table, const std::vector<std::string>& args) : command_(table.command) {
  const std::vector<Flag> flags = all_flags(table);
  for (const std::string& arg : args) refuse_the_ambiguous(table, flags, arg);

  CLI::App app;
  app.set_help_flag();  // ours is a flag like any other: CLI11's would print its own text
  app.allow_extras();
  for (const Flag& flag : flags) declare(app, flag);
  try {
    app.parse(std::vector<std::string>(args.rbegin(), args.rend()));  // CLI11 reads a vector from its back
  } catch (const std::exception& error) {
    // No line we know of comes here; if one does it is still answered in one line.
    throw ConfigError(command_ + ": " + shown(error.what()) + "; " + command_ + " -h lists the flags");
  }

  for (const std::string& word : app.remaining()) {
    if (word.size() > 1 && word[0] == '-') refuse_unknown(table, flags, word);
    words_.push_back(word);
  }
  for (const Flag& flag : flags) {
    const CLI::Option* option = app.get_option(flag.long_name);
    if (option->count() == 0) continue;
    const bool bare = flag.takes == Takes::Nothing;  // CLI11 says "true" for it
    values_[flag.long_name] = bare ? std::vector<std::string>{""} : option->results();
    spelling_[flag.long_name] = spelled(flag, args);
  }
  if (has(kHelp.long_name)) throw HelpRequested{help_text(table)};
  for (const Flag& flag : flags) {
    if (has(flag.long_name)) check_count(command_, flag, spelling(flag.long_name), values_.at(flag.long_name));
  }
}

bool Flags::has(const std::string& long_name) const { return values_.contains(long_name); }

FlagText Flags::value(const std::string& long_name) const { return values(long_name).front(); }

std::vector<FlagText> Flags::values(const std::string& long_name) const {
  DDIP_CHECK(has(long_name), "ask has() first");
  std::vector<FlagText> texts;
  for (const std::string& text : values_.at(long_name)) {
    const std::string place = command_ + " " + spelling(long_name);
    texts.push_back({text.empty() ? place : place + " " + shown(text), text});
  }
  return texts;
}

std::string Flags::spelling(const std::string& long_name) const { return spelling_.at(long_name); }

std::string help_text(const FlagTable& table) {
  const auto left_side = [](const Flag& flag) {
    std::string text = flag.short_name.empty() ? "      " : "  " + flag.short_name + ", ";
    text += flag.long_name;
    if (flag.takes == Takes::OptionalValue) return text + " [" + flag.value_name + "]";
    return flag.takes == Takes::Nothing ? text : text + " " + flag.value_name;
  };
  std::size_t width = 0;
  for (const Flag& flag : all_flags(table)) width = std::max(width, left_side(flag).size());

  std::string text = table.command + ": " + table.purpose + "\nusage: " + table.command + " " + table.usage + "\n";
  const auto add_line = [&](const Flag& flag) {
    std::string left = left_side(flag);
    left.resize(width + 2, ' ');
    text += left + flag.help + "\n";
  };
  for (const FlagSection& section : table.sections) {
    text += "\n" + section.title + "\n";
    for (const Flag& flag : section.flags) add_line(flag);
  }
  add_line(kHelp);
  text += "\nexamples\n";
  for (const std::string& example : table.examples) text += "  " + example + "\n";
  return text;
}

}  // namespace ddip::launch
