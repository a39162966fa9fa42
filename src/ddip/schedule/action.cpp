#include "ddip/schedule/action.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <vector>

#include "ddip/base/error.h"
#include "ddip/base/nearest_name.h"

namespace ddip::schedule {
namespace {

constexpr std::array<std::string_view, 10> kKinds = {"receive", "forward", "send",    "backward", "weight_gradient",
                                                     "step",    "stash",   "predict", "retire",   "drain"};
constexpr std::array<std::string_view, 3> kDirections = {"none", "activation", "gradient"};

enum class Field : uint8_t { stage, micro_batch, edge, version, staleness };
constexpr std::array<std::string_view, 5> kFields = {"stage", "micro_batch", "edge", "version", "staleness"};

// What each kind says of itself, in the order in which it is written.
std::vector<Field> fields_of(Kind kind) {
  switch (kind) {
    case Kind::receive:
    case Kind::send:
    case Kind::retire: return {Field::stage, Field::micro_batch, Field::edge};
    case Kind::step: return {Field::stage, Field::micro_batch, Field::version};
    case Kind::drain: return {Field::micro_batch};
    default: return {Field::stage, Field::micro_batch, Field::version, Field::staleness};
  }
}

int64_t get(const Action& action, Field field) {
  switch (field) {
    case Field::stage: return action.stage;
    case Field::micro_batch: return action.micro_batch;
    case Field::edge: return action.edge;
    case Field::version: return action.version;
    case Field::staleness: return action.staleness;
  }
  return -1;
}

void set(Action& action, Field field, int64_t value) {
  switch (field) {
    case Field::stage: action.stage = static_cast<int>(value); break;
    case Field::micro_batch: action.micro_batch = value; break;
    case Field::edge: action.edge = static_cast<int>(value); break;
    case Field::version: action.version = value; break;
    case Field::staleness: action.staleness = static_cast<int>(value); break;
  }
}

bool is_message(Kind kind) { return kind == Kind::receive || kind == Kind::send || kind == Kind::retire; }

std::vector<std::string_view> words_of(std::string_view text) {
  std::vector<std::string_view> words;
  while (true) {
    const size_t begin = text.find_first_not_of(' ');
    if (begin == std::string_view::npos) return words;
    const size_t end = std::min(text.find(' ', begin), text.size());
    words.push_back(text.substr(begin, end - begin));
    text.remove_prefix(end);
  }
}

template <size_t N>
size_t place_of(std::string_view word, const std::array<std::string_view, N>& names, std::string_view what) {
  for (size_t place = 0; place < N; ++place)
    if (names[place] == word) return place;
  const std::vector<std::string> known(names.begin(), names.end());
  throw ConfigError(fmt::format("{:?} is no {}{}", word, what, did_you_mean(word, known)));
}

int64_t number_of(std::string_view text, Field field) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  // Stages and edges are int; no run has that many micro-batches.
  const int64_t most = field == Field::micro_batch || field == Field::version ? int64_t{1} << 53 : int64_t{1} << 30;
  if (error != std::errc{} || end != text.data() + text.size() || value < 0 || value > most)
    throw ConfigError(fmt::format("{}={}: expected a number from 0", kFields[static_cast<size_t>(field)], text));
  return value;
}

Action parse_words(const std::vector<std::string_view>& words) {
  if (words.empty()) throw ConfigError("an action is missing");
  Action action;
  action.kind = static_cast<Kind>(place_of(words[0], kKinds, "kind of action"));
  size_t at = 1;
  if (is_message(action.kind)) {
    if (at == words.size()) throw ConfigError("expected activation or gradient");
    action.direction = static_cast<Direction>(place_of(words[at++], kDirections, "direction"));
    if (action.direction == Direction::none) throw ConfigError("expected activation or gradient");
  }
  for (const Field field : fields_of(action.kind)) {
    const std::string key = fmt::format("{}=", kFields[static_cast<size_t>(field)]);
    if (at == words.size() || !words[at].starts_with(key)) throw ConfigError(fmt::format("expected {}N", key));
    set(action, field, number_of(words[at++].substr(key.size()), field));
  }
  if (at != words.size()) throw ConfigError(fmt::format("{:?} is too much", words[at]));
  return action;
}

}  // namespace

std::string_view name_of(Kind kind) { return kKinds[static_cast<size_t>(kind)]; }
std::string_view name_of(Direction direction) { return kDirections[static_cast<size_t>(direction)]; }

std::string to_text(const Action& action) {
  std::string text(name_of(action.kind));
  if (is_message(action.kind)) text += fmt::format(" {}", name_of(action.direction));
  for (const Field field : fields_of(action.kind))
    text += fmt::format(" {}={}", kFields[static_cast<size_t>(field)], get(action, field));
  return text;
}

Action parse_action(std::string_view text) {
  try {
    return parse_words(words_of(text));
  } catch (const ConfigError& error) {
    throw ConfigError(fmt::format("action {:?}: {}", text.substr(0, 100), error.what()));
  }
}

}  // namespace ddip::schedule
