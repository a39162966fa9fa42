// A run as a file for chrome://tracing and ui.perfetto.dev, laid out as Python's: a process for each rank, a thread for
// each of its stages, a slice for each action, an arrow for each message.
#include <fmt/format.h>

#include <cmath>
#include <map>
#include <span>
#include <tuple>

#include "ddip/base/file.h"
#include "ddip/pipeline/report.h"

namespace ddip::pipeline {
namespace {

using nlohmann::json;
using schedule::Direction;
using schedule::Kind;

// Nanoseconds are as fine as viewers tell apart.
double rounded(double microseconds) { return std::round(microseconds * 1e3) / 1e3; }
double microseconds(double seconds) { return rounded(seconds * 1e6); }

// Numbers from 1 on, and no thread's number twice: viewers take 0 for the system's idle task, and one number for one
// thread.
class Places {
 public:
  explicit Places(const std::vector<TraceRow>& trace) {
    for (const TraceRow& row : trace) threads_[{row.rank, row.action.stage}] = 0;
    int number = 0;
    for (auto& [place, thread] : threads_) thread = ++number;
  }

  json of(const TraceRow& row) const { return of(row.rank, threads_.at({row.rank, row.action.stage})); }

  std::vector<json> names() const {
    std::vector<json> found;
    int last = -1;
    for (const auto& [place, thread] : threads_) {
      const auto [rank, stage] = place;
      if (rank != last) add(found, "process", fmt::format("rank {}", rank), rank, {{"pid", rank + 1}});
      last = rank;
      add(found, "thread", stage >= 0 ? fmt::format("stage {}", stage) : "the pipeline", stage, of(rank, thread));
    }
    return found;
  }

 private:
  static json of(int rank, int thread) { return {{"pid", rank + 1}, {"tid", thread}}; }
  static void add(std::vector<json>& events, const std::string& what, const std::string& name, int order, json place) {
    place["ph"] = "M";
    json sorted = place;
    place.update({{"name", what + "_name"}, {"args", {{"name", name}}}});
    sorted.update({{"name", what + "_sort_index"}, {"args", {{"sort_index", order}}}});
    events.push_back(std::move(place));
    events.push_back(std::move(sorted));
  }

  std::map<std::pair<int, int>, int> threads_;  // (rank, stage) → its number
};

json slice(const TraceRow& row, const Places& places) {
  const auto& [rank, action, begin, end] = row;
  const std::string kind(schedule::name_of(action.kind));
  json event = places.of(row);
  event.update(
      {{"name", fmt::format("{} {}", kind, action.micro_batch)},
       {"cat", kind},
       {"ph", "X"},
       {"ts", microseconds(begin)},
       {"dur", rounded(microseconds(end) - microseconds(begin))},
       {"args", {{"micro_batch", action.micro_batch}, {"version", action.version}, {"staleness", action.staleness}}}});
  return event;
}

// From each send to the receive that took it.
std::vector<json> arrows(const std::vector<TraceRow>& trace, const Places& places) {
  // By message, those of replicas in the order of their ranks: a replica's are behind the one's before it.
  std::map<std::tuple<int, Direction, int64_t>, std::map<Kind, std::map<int, const TraceRow*>>> ends;
  for (const TraceRow& row : trace) {
    if (row.action.kind == Kind::send || row.action.kind == Kind::receive)
      ends[{row.action.edge, row.action.direction, row.action.micro_batch}][row.action.kind][row.rank] = &row;
  }
  std::vector<json> found;
  int number = 0;
  auto add = [&](const char* phase, const TraceRow& row, double when, json more) {
    json event = places.of(row);
    event.update({{"name", std::string(schedule::name_of(row.action.direction))},
                  {"cat", "message"},
                  {"ph", phase},
                  {"ts", when}});
    event.update(more);
    found.push_back(std::move(event));
  };
  for (auto& [message, by_kind] : ends) {
    auto receive = by_kind[Kind::receive].begin();
    for (const auto& [rank, send] : by_kind[Kind::send]) {
      if (receive == by_kind[Kind::receive].end()) break;
      const TraceRow& taken = *(receive++)->second;
      ++number;
      // Where the wait ends, but within the slice: on its border the arrow would be the next one's.
      const double end = microseconds(taken.end), came = std::max(microseconds(taken.begin), rounded(end - 0.001));
      // The wait may have begun before the send, and Perfetto turns an arrow round whose end lies in the slice that
      // began first: so it ends in a slice of its own, inside the wait.
      const int64_t micro_batch = taken.action.micro_batch;
      add("X", taken, came,
          {{"name", fmt::format("{} {}", schedule::name_of(taken.action.direction), micro_batch)},
           {"dur", rounded(end - came)},
           {"args", {{"micro_batch", micro_batch}}}});
      add("s", *send, microseconds(send->begin), {{"id", number}});
      add("f", taken, came, {{"id", number}, {"bp", "e"}});
    }
  }
  return found;
}

}  // namespace

void Report::save_trace(const std::filesystem::path& path) const {
  const Places places(trace);
  std::vector<json> events = places.names();
  for (const TraceRow& row : trace) events.push_back(slice(row, places));
  for (json& arrow : arrows(trace, places)) events.push_back(std::move(arrow));
  // One event a line: a person can read it, and search in it.
  std::string text = "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n";
  for (size_t i = 0; i < events.size(); ++i) text += events[i].dump() + (i + 1 < events.size() ? ",\n" : "\n");
  text += "]}\n";
  NewFile file(path);
  file.write(std::as_bytes(std::span(text)), 0);
  file.publish();
}

}  // namespace ddip::pipeline
