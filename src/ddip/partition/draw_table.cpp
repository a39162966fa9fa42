#include <fmt/format.h>

#include <algorithm>

#include "ddip/partition/draw.h"

namespace ddip::partition {
namespace {

using Row = std::vector<std::string>;

std::string layers_in_words(const Plan& plan, size_t stage) {
  std::vector<std::string> names;
  for (size_t node : plan.graph.order())
    if (plan.cut.stage_of[node] == stage) names.push_back(plan.graph.nodes()[node].name);
  if (names.size() == 1) return names.front();
  if (names.size() == 2) return names.front() + ", " + names.back();
  return fmt::format("{} … {} ({})", names.front(), names.back(), names.size());
}

// Characters, not bytes: "…" is one of three bytes.
size_t width_of(const std::string& text) {
  return static_cast<size_t>(std::count_if(
      text.begin(), text.end(), [](char byte) { return (static_cast<unsigned char>(byte) & 0xc0) != 0x80; }));
}

// Names to the left, numbers to the right.
std::string aligned(const std::vector<Row>& rows, size_t text_column) {
  std::vector<size_t> widths(rows.front().size());
  for (const Row& row : rows)
    for (size_t column = 0; column < row.size(); ++column)
      widths[column] = std::max(widths[column], width_of(row[column]));
  std::string text;
  for (const Row& row : rows) {
    for (size_t column = 0; column < row.size(); ++column) {
      const std::string blanks(widths[column] - width_of(row[column]), ' ');
      if (column > 0) text += "  ";
      text += column == text_column ? row[column] + blanks : blanks + row[column];
    }
    text += "\n";
  }
  return text;
}

}  // namespace

std::string plan_table(const Plan& plan, size_t micro_batches) {
  const Cost cost = cost_of(plan.graph, plan.cut, plan.costs);
  std::vector<Row> rows = {{"stage", "device", "layers", "forward", "backward", "parameters"}};
  for (size_t stage = 0; stage < plan.cut.stages(); ++stage) {
    double forward = 0, backward = 0;
    uint64_t parameters = 0;
    for (size_t node = 0; node < plan.graph.nodes().size(); ++node) {
      if (plan.cut.stage_of[node] != stage) continue;
      forward += plan.graph.nodes()[node].forward_ms;
      backward += plan.graph.nodes()[node].backward_ms;
      parameters += plan.graph.nodes()[node].parameter_bytes;
    }
    rows.push_back({std::to_string(stage), std::to_string(plan.cut.device_of[stage]), layers_in_words(plan, stage),
                    fmt::format("{:.3f} ms", forward), fmt::format("{:.3f} ms", backward), bytes_in_words(parameters)});
  }
  std::string text = aligned(rows, 2) + "\n";
  rows = {{"device", "compute", "link", "memory"}};
  for (size_t device = 0; device < cost.devices.size(); ++device) {
    const DeviceCost& of = cost.devices[device];
    rows.push_back({std::to_string(device), fmt::format("{:.3f} ms", of.compute_ms),
                    fmt::format("{:.3f} ms", of.link_ms), bytes_in_words(of.memory_bytes)});
  }
  text += aligned(rows, 0) + "\n";
  text += fmt::format("one micro-batch: {:.3f} ms on one device, {:.3f} ms on the slowest of {}; {} cross links\n",
                      whole_ms(plan.graph), cost.slowest_ms, cost.devices.size(), bytes_in_words(cost.link_bytes));
  text += fmt::format("predicted speed-up {:.2f} of {}\n", speed_up(plan.graph, cost), cost.devices.size());
  text += fmt::format("predicted bubble {:.1f}% without flush, {:.1f}% with a flush every {} micro-batches\n",
                      100 * bubble(cost), 100 * bubble_with_flush(cost, micro_batches), micro_batches);
  return text;
}

}  // namespace ddip::partition
