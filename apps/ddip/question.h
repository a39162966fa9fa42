// A question on the terminal, for input() and getpass() on a rank.
#pragma once

#include <functional>
#include <string>

namespace ddip::app {

struct Answer {
  enum class Kind { line, end_of_input, interrupted };
  Kind kind;
  std::string text;  // of a line, without its end
};

// Standard input and error are a terminal. What is typed for a secret is not shown. `interrupted` is looked at often;
// once it is true the question is left as it is, and what was typed so far is nobody's answer.
Answer ask(const std::string& prompt, bool secret, const std::function<bool()>& interrupted);

}  // namespace ddip::app
