#include <fmt/format.h>
#include <fmt/ranges.h>

#include "command.h"
#include "ddip/base/error.h"
#include "tables.h"

namespace ddip::app {

launch::FlagTable completion_flags() {
  return {"ddip completion",
          "a script that completes ddip's commands, flags and group names",
          "bash|zsh|fish",
          {},
          {"source <(ddip completion bash)                       # in ~/.bashrc",
           "ddip completion zsh > ~/.zfunc/_ddip                 # a folder in fpath",
           "ddip completion fish > ~/.config/fish/completions/ddip.fish"}};
}

namespace {

// Commands whose first word is a group's name.
bool takes_group(const std::string& command) {
  return command != "ls" && command != "run" && command != "doctor" && command != "completion";
}

std::vector<const launch::Flag*> flags_of(const Command& command) {
  std::vector<const launch::Flag*> found;
  for (const launch::FlagSection& section : command.flags.sections) {
    for (const launch::Flag& flag : section.flags) found.push_back(&flag);
  }
  return found;
}

std::string flag_words(const Command& command) {
  std::string words = "--help";
  for (const launch::Flag* flag : flags_of(command)) words += " " + flag->long_name;
  return words;
}

std::string command_words() {
  std::string words = "--help --version";
  for (const Command& command : commands()) words += " " + command.name;
  return words;
}

std::string bash_cases() {
  std::string cases;
  for (const Command& command : commands()) {
    cases += fmt::format("    {}) flags='{}'; names={} ;;\n", command.name, flag_words(command),
                         takes_group(command.name) ? "yes" : "");
  }
  return cases;
}

std::string bash() {
  return "_ddip() {\n"
         "  local word=${COMP_WORDS[COMP_CWORD]} flags= names=\n"
         "  if ((COMP_CWORD == 1)); then COMPREPLY=($(compgen -W '" +
         command_words() +
         "' -- \"$word\")); return; fi\n"
         "  case ${COMP_WORDS[1]} in\n" +
         bash_cases() +
         "  esac\n"
         "  [[ ${COMP_WORDS[1]} == completion ]] && { COMPREPLY=($(compgen -W 'bash zsh fish' -- \"$word\")); return; "
         "}\n"
         "  if [[ $word == -* ]]; then COMPREPLY=($(compgen -W \"$flags\" -- \"$word\"))\n"
         "  elif [[ $names ]]; then COMPREPLY=($(compgen -W \"$(ddip ls --names 2>/dev/null)\" -- \"$word\"))\n"
         "  fi\n"
         "}\n"
         "complete -o default -F _ddip ddip\n";
}

std::string zsh() {
  return "#compdef ddip\n"
         "_ddip() {\n"
         "  local flags= names=\n"
         "  if ((CURRENT == 2)); then compadd -- " +
         command_words() +
         "; return; fi\n"
         "  case ${words[2]} in\n" +
         bash_cases() +
         "  esac\n"
         "  if [[ ${words[2]} == completion ]]; then compadd -- bash zsh fish; return; fi\n"
         "  if [[ ${words[CURRENT]} == -* ]]; then compadd -- ${=flags}\n"
         "  elif [[ -n $names ]]; then compadd -- ${(f)\"$(ddip ls --names 2>/dev/null)\"}; _files\n"
         "  else _files\n"
         "  fi\n"
         "}\n"
         "if [[ $zsh_eval_context[-1] == loadautofunc ]]; then _ddip \"$@\"; else compdef _ddip ddip; fi\n";
}

std::string quoted(std::string text) {
  for (size_t at = 0; (at = text.find('\'', at)) != std::string::npos; at += 2) text.insert(at, "\\");
  return "'" + text + "'";
}

std::string fish() {
  std::string text =
      "complete -c ddip -n __fish_use_subcommand -l help -d 'what there is'\n"
      "complete -c ddip -n __fish_use_subcommand -l version\n";
  for (const Command& command : commands()) {
    text += fmt::format("complete -c ddip -f -n __fish_use_subcommand -a {} -d {}\n", command.name,
                        quoted(command.flags.purpose));
    const std::string here = fmt::format("complete -c ddip -n '__fish_seen_subcommand_from {}'", command.name);
    if (takes_group(command.name)) text += here + " -a '(ddip ls --names 2>/dev/null)'\n";
    if (command.name == "completion") text += here + " -f -a 'bash zsh fish'\n";
    for (const launch::Flag* flag : flags_of(command)) {
      const std::string brief = flag->short_name.empty() ? "" : " -s " + flag->short_name.substr(1);
      text += fmt::format("{} -l {}{}{} -d {}\n", here, flag->long_name.substr(2), brief,
                          flag->takes == launch::Takes::Value ? " -x" : "", quoted(flag->help));
    }
  }
  return text;
}

}  // namespace

int completion(const Context&, const Arguments& arguments) {
  const launch::Flags flags(completion_flags(), arguments);
  if (flags.words().size() != 1) throw ConfigError("ddip completion: expected a shell: bash, zsh or fish");
  const std::string& word = flags.words().front();
  const std::string shell = launch::one_of({"ddip completion " + launch::shown(word), word}, {"bash", "zsh", "fish"});
  fmt::print("{}", shell == "bash" ? bash() : shell == "zsh" ? zsh() : fish());
  return 0;
}

}  // namespace ddip::app
