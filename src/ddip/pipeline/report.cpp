#include "ddip/pipeline/report.h"

#include <fmt/format.h>

#include <cmath>

#include <algorithm>
#include <fstream>
#include <limits>
#include <map>
#include <numeric>
#include <ostream>

namespace ddip::pipeline {

using nlohmann::json;
using schedule::Kind;

namespace {

json packed(const TraceRow& row) {
  const schedule::Action& action = row.action;
  return {row.rank,
          static_cast<int>(action.kind),
          static_cast<int>(action.direction),
          action.stage,
          action.micro_batch,
          action.edge,
          action.version,
          action.staleness,
          row.begin,
          row.end};
}

TraceRow unpacked(const json& row) {
  return {.rank = row[0],
          .action = {.kind = static_cast<Kind>(row[1].get<int>()),
                     .direction = static_cast<schedule::Direction>(row[2].get<int>()),
                     .stage = row[3],
                     .micro_batch = row[4],
                     .edge = row[5],
                     .version = row[6],
                     .staleness = row[7]},
          .begin = row[8],
          .end = row[9]};
}

// Since it was started: its clock begins anew then.
std::string this_machine() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string line;
  std::getline(file, line);
  return line;
}

std::string text_of_gaps(const std::vector<StageTimes>& stages) {
  std::string lines;
  for (const StageTimes& one : stages) {
    if (!one.gap) continue;
    if (lines.empty()) lines = fmt::format("\n{:>5} {:>10} {:>10}\n", "stage", "moved", "error");
    lines += fmt::format("{:>5} {:>10.3g} {:>10.3g}\n", one.stage, one.gap->moved, one.gap->error);
  }
  return lines.empty() ? lines : lines + "\n";
}

std::string text_of_scale(const std::vector<StageTimes>& stages) {
  int64_t most = 0;
  for (const StageTimes& one : stages) most = std::max(most, one.left_out);
  if (stages.empty() || !stages.back().loss_scale) return "";
  return fmt::format("fp16: loss scale {}, {} step{} left out\n", *stages.back().loss_scale, most,
                     most == 1 ? "" : "s");
}

}  // namespace

StageTimes times_of(const Record& record, int stage, int rank, int64_t copies_kept) {
  StageTimes times{.stage = stage, .rank = rank, .bytes_sent = record.bytes_sent, .copies_kept = copies_kept};
  double busy = 0;
  for (const Done& done : record.actions()) {
    double seconds = done.end - done.begin;
    times.total = std::max(times.total, done.end);
    switch (done.action.kind) {
      case Kind::forward:
      case Kind::backward:
      case Kind::weight_gradient:
      case Kind::step:
      case Kind::predict:
      case Kind::stash: busy += seconds; break;
      default: break;
    }
    if (done.action.stage != stage) continue;
    switch (done.action.kind) {
      case Kind::forward:
        times.forward += seconds;
        ++times.staleness[done.action.staleness];
        break;
      case Kind::backward:
      case Kind::weight_gradient: times.backward += seconds; break;
      case Kind::step:
        times.update += seconds;
        times.left_out += done.stepped.left_out ? 1 : 0;
        break;
      case Kind::receive: times.wait += seconds; break;
      default: times.communication += seconds; break;
    }
  }
  times.bubble = times.total > 0 ? 1 - busy / times.total : 0;
  return times;
}

double Report::bubble() const {
  std::map<int, double> of_rank;
  for (const StageTimes& one : stages) of_rank[one.rank] = one.bubble;
  double sum = 0;
  for (const auto& [rank, bubble] : of_rank) sum += bubble;
  return stages.empty() ? 0 : sum / static_cast<double>(of_rank.size());
}

std::string Report::text() const {
  std::string lines = fmt::format("{:>5} {:>4} {:>8} {:>8} {:>8} {:>8} {:>8} {:>7}\n", "stage", "rank", "forward",
                                  "backward", "update", "send", "wait", "bubble");
  for (const StageTimes& one : stages)
    lines +=
        fmt::format("{:>5} {:>4} {:>7.2f}s {:>7.2f}s {:>7.2f}s {:>7.2f}s {:>7.2f}s {:>6.1f}%\n", one.stage, one.rank,
                    one.forward, one.backward, one.update, one.communication, one.wait, 100 * one.bubble);
  lines += text_of_gaps(stages) + text_of_scale(stages);
  std::string last;
  if (!losses.empty())
    last = training ? fmt::format(", last loss {:.4g}", losses.back()) : fmt::format(", mean loss {:.4g}", loss);
  for (const auto& [name, mean] : metrics) last += fmt::format(", {} {:.4g}", name, mean);
  if (not_finite_in) last += fmt::format("; the loss is {} in batch {}", losses[*not_finite_in], *not_finite_in);
  return lines + fmt::format("{} batches in {:.2f} s{}", losses.size(), seconds, last);
}

std::ostream& operator<<(std::ostream& out, const Report& report) { return out << report.text(); }

json share_of(const Record& record, const std::vector<StageTimes>& stages, int rank) {
  json share{{"stages", json::array()},
             {"losses", json::array()},
             {"trace", json::array()},
             {"start", record.start},
             {"machine", this_machine()}};
  for (const StageTimes& one : stages) {
    json staleness = json::array();
    for (const auto& [steps, forwards] : one.staleness) staleness.push_back({steps, forwards});
    share["stages"].push_back({one.stage, one.rank, one.forward, one.backward, one.update, one.communication, one.wait,
                               one.total, one.bubble, staleness, one.bytes_sent, one.copies_kept,
                               one.gap ? json{one.gap->moved, one.gap->error} : json(), one.left_out,
                               one.loss_scale ? json(*one.loss_scale) : json()});
  }
  for (const auto& [micro_batch, sum, count] : record.losses.all())
    share["losses"].push_back({micro_batch, sum, count});
  for (const Done& done : record.actions()) share["trace"].push_back(packed({rank, done.action, done.begin, done.end}));
  return share;
}

Report joined(const std::vector<json>& shares, int64_t batches, int micro_batches) {
  Report report;
  std::vector<double> sums(static_cast<size_t>(batches)), counts(sums.size());
  // Of each machine, by whose clock its ranks say when. Ranks on other machines are taken to have begun together.
  std::map<std::string, double> begun;
  for (const json& share : shares) {
    const auto start = share.at("start").get<double>();
    double& first = begun.try_emplace(share.at("machine"), start).first->second;
    first = std::min(first, start);
  }
  for (const json& share : shares) {
    const double later = share.at("start").get<double>() - begun.at(share.at("machine"));
    for (const json& one : share.at("stages")) {
      StageTimes times{.stage = one[0],
                       .rank = one[1],
                       .forward = one[2],
                       .backward = one[3],
                       .update = one[4],
                       .communication = one[5],
                       .wait = one[6],
                       .total = one[7],
                       .bubble = one[8],
                       .bytes_sent = one[10],
                       .copies_kept = one[11],
                       .left_out = one[13]};
      if (!one[14].is_null()) times.loss_scale = one[14].get<double>();
      if (!one[12].is_null()) times.gap = {.moved = one[12][0], .error = one[12][1]};
      for (const json& pair : one[9]) times.staleness[pair[0]] = pair[1];
      report.stages.push_back(std::move(times));
    }
    for (const json& one : share.at("losses")) {
      auto batch = static_cast<size_t>(one[0].get<int64_t>() / micro_batches);
      sums.at(batch) += one[1].get<double>();
      counts.at(batch) += one[2].get<double>();
    }
    for (const json& row : share.at("trace")) {
      TraceRow& one = report.trace.emplace_back(unpacked(row));
      one.begin += later;
      one.end += later;
      report.seconds = std::max(report.seconds, report.trace.back().end);
    }
  }
  for (size_t batch = 0; batch < sums.size() && !report.not_finite_in; ++batch) {
    if (counts[batch] > 0 && !std::isfinite(sums[batch])) report.not_finite_in = batch;
  }
  for (StageTimes& one : report.stages) {
    // Of the run, which ends with its last rank.
    if (report.seconds > 0) one.bubble = 1 - (1 - one.bubble) * one.total / report.seconds;
  }
  std::ranges::sort(report.stages, {}, &StageTimes::stage);
  report.loss = std::accumulate(sums.begin(), sums.end(), 0.0) / std::accumulate(counts.begin(), counts.end(), 0.0);
  for (size_t i = 0; i < sums.size(); ++i)
    report.losses.push_back(counts[i] > 0 ? sums[i] / counts[i] : std::numeric_limits<double>::quiet_NaN());
  return report;
}

}  // namespace ddip::pipeline
