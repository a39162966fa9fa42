// A run's picture: the grid in which plans are drawn, with the times that were.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <span>

#include "ddip/base/file.h"
#include "ddip/pipeline/report.h"
#include "ddip/schedule/draw.h"

namespace ddip::pipeline {
namespace {

// Of a longer run nothing could be told apart, and browsers do not draw it whole.
constexpr size_t kMostBoxes = 4000;

// Replicas do the same on ranks of their own: one of them is shown.
std::map<int, int> ranks_of_stages(const std::vector<TraceRow>& trace) {
  std::map<int, int> found;
  for (const TraceRow& row : trace) {
    if (row.action.stage < 0) continue;
    const auto [place, is_new] = found.try_emplace(row.action.stage, row.rank);
    place->second = std::min(place->second, row.rank);
  }
  return found;
}

double end_of_boxes(const std::vector<TraceRow>& trace, size_t most) {
  std::vector<double> begins;
  for (const TraceRow& row : trace) begins.push_back(row.begin);
  std::ranges::sort(begins);
  return begins.size() > most ? begins[most] : 0;
}

}  // namespace

std::string Report::timeline(double until) const {
  const std::map<int, int> rank_of = ranks_of_stages(trace);
  schedule::Plan plan;
  plan.request.stages = rank_of.empty() ? 0 : rank_of.rbegin()->first + 1;
  plan.request.rank_of_stage.resize(static_cast<size_t>(plan.request.stages));
  for (const auto& [stage, rank] : rank_of) plan.request.rank_of_stage[static_cast<size_t>(stage)] = rank;
  if (rank_of.size() > 1) plan.request.edges = {{0, 1}};  // there are messages
  std::vector<TraceRow> shown;
  for (const TraceRow& row : trace) {
    if (row.action.stage >= 0 && rank_of.at(row.action.stage) == row.rank) shown.push_back(row);
  }
  schedule::Simulation times;
  for (const TraceRow& row : shown) {
    const auto rank = static_cast<size_t>(row.rank);
    plan.ranks.resize(std::max(plan.ranks.size(), rank + 1));
    times.timeline.resize(plan.ranks.size());
    plan.ranks[rank].push_back(row.action);
    // A message may have come before its sender's call returns: its line begins where the call does.
    const double end = row.action.kind == schedule::Kind::send ? row.begin : row.end;
    times.timeline[rank].push_back({row.begin * 1e3, end * 1e3});
    times.makespan = std::max(times.makespan, row.end * 1e3);
  }
  const double end = until > 0 ? until : end_of_boxes(shown, kMostBoxes);
  std::string title = fmt::format("{} batches in {:.2f} s", losses.size(), seconds);
  if (!stages.empty()) title += fmt::format(", {:.0f}% of the time computing", 100 * utilisation());
  return schedule::draw_svg(plan, times, {.title = title, .until = end * 1e3, .unit = "ms"});
}

void Report::save_timeline(const std::filesystem::path& path, double until) const {
  const std::string text = timeline(until);
  NewFile file(path);
  file.write(std::as_bytes(std::span(text)), 0);
  file.publish();
}

}  // namespace ddip::pipeline
