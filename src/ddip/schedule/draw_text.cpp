#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "ddip/schedule/draw.h"

namespace ddip::schedule {
namespace {

char letter_of(Kind kind) {
  switch (kind) {
    case Kind::forward: return 'F';
    case Kind::backward: return 'B';
    case Kind::weight_gradient: return 'W';
    default: return '\0';
  }
}

// The shortest computation gets as many columns as its name needs ("F12" and a gap).
double columns_per_time(const Plan& plan, const Simulation& simulation) {
  double shortest = std::numeric_limits<double>::infinity();
  size_t longest = 0;
  for (size_t rank = 0; rank < plan.ranks.size(); ++rank)
    for (size_t index = 0; index < plan.ranks[rank].size(); ++index) {
      const Span& span = simulation.timeline[rank][index];
      if (letter_of(plan.ranks[rank][index].kind) == '\0' || span.end <= span.begin) continue;
      shortest = std::min(shortest, span.end - span.begin);
      longest = std::max(longest, std::to_string(plan.ranks[rank][index].micro_batch).size());
    }
  return std::isfinite(shortest) ? static_cast<double>(longest + 2) / shortest : 1;
}

}  // namespace

std::string draw_text(const Plan& plan, const Simulation& simulation, int columns) {
  const double scale = columns_per_time(plan, simulation);
  const std::string head = fmt::format("stage {:>2} |", plan.request.stages - 1);
  const auto width = static_cast<size_t>(std::max(20, columns)) - head.size();
  const auto needed = static_cast<size_t>(std::ceil(simulation.makespan * scale));
  std::vector<std::string> rows(static_cast<size_t>(plan.request.stages), std::string(std::min(width, needed), '.'));
  std::vector<std::string> steps(rows.size(), std::string(rows.empty() ? 0 : rows[0].size() + 1, ' '));
  for (size_t rank = 0; rank < plan.ranks.size(); ++rank)
    for (size_t index = 0; index < plan.ranks[rank].size(); ++index) {
      const Action& action = plan.ranks[rank][index];
      const Span& span = simulation.timeline[rank][index];
      if (action.stage < 0) continue;
      std::string& row = rows[static_cast<size_t>(action.stage)];
      const auto begin = static_cast<size_t>(std::lround(span.begin * scale));
      const size_t end = std::min(static_cast<size_t>(std::lround(span.end * scale)), row.size());
      std::string& below = steps[static_cast<size_t>(action.stage)];
      if (action.kind == Kind::step && begin < below.size()) below[begin] = '^';
      if (letter_of(action.kind) == '\0' || begin >= end) continue;
      std::string box = letter_of(action.kind) + std::to_string(action.micro_batch);
      box.resize(end - begin, letter_of(action.kind) == 'F' ? '-' : '=');
      if (end - begin > 1) box.back() = ' ';
      row.replace(begin, end - begin, box);
    }
  std::string text;
  for (size_t stage = 0; stage < rows.size(); ++stage) {
    text += fmt::format("stage {:>2} |{}\n", stage, rows[stage]);
    if (steps[stage].find('^') != std::string::npos)
      text += fmt::format("         |{}\n", steps[stage].substr(0, steps[stage].find_last_of('^') + 1));
  }
  text += fmt::format("F forward, B backward, W weight gradient, ^ step, . idle; {:.0f}% of the time computing\n",
                      100 * (1 - simulation.bubble));
  if (needed > width) text += fmt::format("cut off: {} of {} columns are shown\n", width, needed);
  return text;
}

}  // namespace ddip::schedule
