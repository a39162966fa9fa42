#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "ddip/base/xml_text.h"
#include "ddip/partition/draw.h"

namespace ddip::partition {
namespace {

// Pixels.
constexpr double kBox = 230, kGap = 120, kLine = 17, kHead = 30, kFoot = 8, kMargin = 24, kLaneTitle = 24;
constexpr size_t kMostLines = 31;  // of one box: a longer list loses its middle
constexpr size_t kMostLetters = 24;
constexpr std::array<const char*, 8> kColours = {"#4c78a8", "#f58518", "#54a24b", "#b279a2",
                                                 "#e45756", "#72b7b2", "#9d755d", "#eeca3b"};

// The end of a dotted path says more than its beginning.
std::string shortened(const std::string& name) {
  return name.size() <= kMostLetters ? name : "…" + name.substr(name.size() - kMostLetters + 1);
}

class Picture {
 public:
  explicit Picture(const Plan& plan) : plan_(plan), cost_(cost_of(plan.graph, plan.cut, plan.costs)) {
    layers_.resize(plan.cut.stages());
    for (size_t node : plan.graph.order()) layers_[plan.cut.stage_of[node]].push_back(node);
    for (const Node& node : plan.graph.nodes()) longest_ms_ = std::max(longest_ms_, ms(node));
    std::vector<double> heights(cost_.devices.size());
    for (size_t stage = 0; stage < layers_.size(); ++stage) {
      double& height = heights[plan.cut.device_of[stage]];
      height = std::max(height, box_height(stage));
    }
    bottom_ = kMargin + 2 * kLine;
    for (double height : heights) {
      lanes_.push_back(bottom_);
      bottom_ += kLaneTitle + height + kMargin;
    }
    width_ = 2 * kMargin + static_cast<double>(layers_.size()) * (kBox + kGap) - kGap;
    // The line above the picture is longer than a picture of one stage.
    width_ = std::max(width_, 760.0);
    y_.resize(plan.graph.nodes().size());
  }

  std::string draw() {
    std::string boxes;
    for (size_t stage = 0; stage < layers_.size(); ++stage) boxes += box(stage);
    std::string text = fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" viewBox=\"0 0 {0:.0f} "
        "{1:.0f}\" "
        "font-family=\"sans-serif\" font-size=\"12\">\n"
        "<defs><marker id=\"tip\" viewBox=\"0 0 8 8\" refX=\"7\" refY=\"4\" markerWidth=\"9\" markerHeight=\"9\" "
        "markerUnits=\"userSpaceOnUse\" "
        "orient=\"auto\"><path d=\"M0 0 L8 4 L0 8 z\" fill=\"#444\"/></marker></defs>\n"
        "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
        width_, bottom_);
    text += fmt::format(
        "<text x=\"{}\" y=\"{}\" font-size=\"14\">{}: {} stages on {} devices, slowest {:.3f} ms of {:.3f} ms, "
        "speed-up "
        "{:.2f}, {} on links</text>\n",
        kMargin, kMargin + 4, xml_text(plan_.model), layers_.size(), cost_.devices.size(), cost_.slowest_ms,
        whole_ms(plan_.graph), speed_up(plan_.graph, cost_), bytes_in_words(cost_.link_bytes));
    for (size_t device = 0; device < lanes_.size(); ++device) text += lane(device);
    return text + arrows() + boxes + "</svg>\n";
  }

 private:
  static double ms(const Node& node) { return node.forward_ms + node.backward_ms; }
  static const char* colour(size_t device) { return kColours.at(device % kColours.size()); }
  double left(size_t stage) const { return kMargin + static_cast<double>(stage) * (kBox + kGap); }
  double top(size_t stage) const { return lanes_[plan_.cut.device_of[stage]] + kLaneTitle; }
  double box_height(size_t stage) const {
    return kHead + static_cast<double>(std::min(layers_[stage].size(), kMostLines)) * kLine + kFoot;
  }

  std::string lane(size_t device) const {
    const double end = device + 1 < lanes_.size() ? lanes_[device + 1] : bottom_;
    const DeviceCost& cost = cost_.devices[device];
    return fmt::format(
        "<rect x=\"8\" y=\"{:.0f}\" width=\"{:.0f}\" height=\"{:.0f}\" rx=\"6\" fill=\"{}\" fill-opacity=\"0.07\"/>"
        "<text x=\"16\" y=\"{:.0f}\" fill=\"#444\">device {}: {:.3f} ms, {}</text>\n",
        lanes_[device], width_ - 16, end - lanes_[device] - 8, colour(device), lanes_[device] + 16, device, cost.ms(),
        bytes_in_words(cost.memory_bytes));
  }

  std::string box(size_t stage) {
    const double x = left(stage), y = top(stage);
    const char* fill = colour(plan_.cut.device_of[stage]);
    const auto& layers = layers_[stage];
    double sum = 0;
    for (size_t node : layers) sum += ms(plan_.graph.nodes()[node]);
    std::string text = fmt::format(
        "<rect x=\"{0:.0f}\" y=\"{1:.0f}\" width=\"{2:.0f}\" height=\"{3:.0f}\" rx=\"6\" fill=\"white\" stroke=\"{4}\" "
        "stroke-width=\"2\"/><text x=\"{5:.0f}\" y=\"{6:.0f}\" font-weight=\"bold\">stage {7}</text>"
        "<text x=\"{8:.0f}\" y=\"{6:.0f}\" text-anchor=\"end\">{9:.3f} ms</text>\n",
        x, y, kBox, box_height(stage), fill, x + 10, y + 19, stage, x + kBox - 10, sum);
    const size_t half = kMostLines / 2;
    const size_t hidden = layers.size() > kMostLines ? layers.size() - 2 * half : 0;
    for (size_t index = 0; index < layers.size(); ++index) {
      const bool in_gap = hidden > 0 && index >= half && index < half + hidden;
      const size_t line = hidden == 0 || index < half ? index : in_gap ? half : index - hidden + 1;
      const double base = y + kHead + static_cast<double>(line) * kLine + 12;
      y_[layers[index]] = base - 4;
      if (in_gap && index > half) continue;
      const Node& node = plan_.graph.nodes()[layers[index]];
      const std::string name = in_gap ? fmt::format("… {} more", hidden) : shortened(node.name);
      text += fmt::format("<text x=\"{:.0f}\" y=\"{:.0f}\">{}<title>{}: {:.3f} + {:.3f} ms</title></text>", x + 10,
                          base, xml_text(name), xml_text(node.name), node.forward_ms, node.backward_ms);
      if (!in_gap && longest_ms_ > 0)
        text += fmt::format("<rect x=\"{:.0f}\" y=\"{:.0f}\" width=\"{:.1f}\" height=\"9\" fill=\"{}\"/>",
                            x + kBox - 60, base - 9, 50 * ms(node) / longest_ms_, fill);
      text += "\n";
    }
    return text;
  }

  // Along the row of the stage that gives the value, then across in front of the one that takes it.
  // REQUIRES: boxes were drawn, so that each layer's line is known. Lies below them.
  std::string arrows() const {
    std::string text;
    std::vector<std::pair<std::string, size_t>> drawn;  // a value comes once to each stage
    for (const Edge& edge : plan_.graph.edges()) {
      const size_t from = plan_.cut.stage_of[edge.from], to = plan_.cut.stage_of[edge.to];
      if (from == to || std::find(drawn.begin(), drawn.end(), std::pair(edge.value, to)) != drawn.end()) continue;
      drawn.emplace_back(edge.value, to);
      const bool crosses = plan_.cut.device_of[from] != plan_.cut.device_of[to];
      const double x1 = left(from) + kBox, y1 = y_[edge.from], x2 = left(to), y2 = y_[edge.to];
      text += fmt::format(
          "<path d=\"M{0:.0f} {1:.0f} H{2:.0f} C{3:.0f} {1:.0f} {3:.0f} {4:.0f} {5:.0f} {4:.0f}\" fill=\"none\" "
          "stroke=\"{6}\" stroke-width=\"{7}\"{8} marker-end=\"url(#tip)\"><title>{9} → {10}: {11}, "
          "{12}</title></path>\n",
          x1, y1, x2 - kGap, x2 - kGap / 2, y2, x2, crosses ? "#c0392b" : "#999", crosses ? "2" : "1.5",
          crosses ? "" : " stroke-dasharray=\"5 4\"", xml_text(plan_.graph.nodes()[edge.from].name),
          xml_text(plan_.graph.nodes()[edge.to].name), xml_text(edge.shape), bytes_in_words(edge.bytes));
      if (crosses)
        text += fmt::format(
            "<text x=\"{:.0f}\" y=\"{:.0f}\" text-anchor=\"end\" font-size=\"10\" fill=\"#c0392b\" "
            "stroke=\"white\" stroke-width=\"3\" paint-order=\"stroke\">{}</text>\n",
            x2 - 10, y2 - 4, bytes_in_words(edge.bytes));
    }
    return text;
  }

  const Plan& plan_;
  const Cost cost_;
  std::vector<std::vector<size_t>> layers_;  // by stage, in order
  std::vector<double> lanes_;                // by device: its top
  std::vector<double> y_;                    // by layer
  double longest_ms_ = 0;
  double bottom_ = 0;
  double width_ = 0;
};

}  // namespace

std::string plan_picture(const Plan& plan) { return Picture(plan).draw(); }

}  // namespace ddip::partition
