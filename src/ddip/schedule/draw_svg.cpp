#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>

#include "ddip/base/xml_text.h"
#include "ddip/schedule/draw.h"

namespace ddip::schedule {
namespace {

constexpr double kRow = 34, kBox = 26, kLeft = 104, kTop = 40, kRight = 14, kAxis = 22, kLegend = 30;

struct Look {
  const char* name;
  const char* fill;
  const char* stroke;
  const char* hatch;  // a pattern laid over the fill, or none
};

// Light fills under black numbers; hatches tell them apart in grey and for colour-blind eyes.
constexpr Look kForward = {"forward", "#cfe3f7", "#2f6ca3", ""};
constexpr Look kBackward = {"backward", "#f9d9b0", "#a8641a", "back"};
constexpr Look kWeights = {"weight gradient", "#d9ecc8", "#5a8a31", "dots"};
constexpr Look kStep = {"step", "#333333", "#111111", ""};
constexpr Look kPredict = {"predict", "#e5d4f2", "#7446a0", "cross"};

const Look* look_of(Kind kind) {
  switch (kind) {
    case Kind::forward: return &kForward;
    case Kind::backward: return &kBackward;
    case Kind::weight_gradient: return &kWeights;
    case Kind::step: return &kStep;
    case Kind::predict: return &kPredict;
    default: return nullptr;
  }
}

class Painter {
 public:
  Painter(const Plan& plan, const Simulation& simulation, const DrawOptions& options)
      : plan_(plan),
        simulation_(simulation),
        options_(options),
        until_(options.until > 0 ? std::min(options.until, simulation.makespan) : simulation.makespan),
        scale_((options.width - kLeft - kRight) / std::max(until_, 1e-9)) {}

  std::string paint() {
    const int stages = plan_.request.stages;
    const double height = kTop + stages * kRow + kAxis + kLegend;
    out_ = fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} {1:.0f}\" width=\"{0:.0f}\" "
        "height=\"{1:.0f}\" "
        "font-family=\"sans-serif\" font-size=\"12\">\n",
        options_.width, height);
    defs();
    add("<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n");
    add("<text x=\"10\" y=\"22\" font-size=\"14\" font-weight=\"bold\">{}</text>\n", xml_text(title()));
    for (int stage = 0; stage < stages; ++stage) row(stage);
    // Lines lie under boxes.
    if (options_.messages) messages();
    for (size_t rank = 0; rank < plan_.ranks.size(); ++rank)
      for (size_t index = 0; index < plan_.ranks[rank].size(); ++index)
        box(plan_.ranks[rank][index], simulation_.timeline[rank][index]);
    axis(kTop + stages * kRow);
    legend(kTop + stages * kRow + kAxis + 6);
    return out_ + "</svg>\n";
  }

 private:
  template <class... Args>
  void add(fmt::format_string<Args...> text, Args&&... args) {
    out_ += fmt::format(text, std::forward<Args>(args)...);
  }

  std::string title() const {
    if (!options_.title.empty()) return options_.title;
    const Request& request = plan_.request;
    return fmt::format("{}: {} stages, {} x {} micro-batches, {:.0f}% of the time computing", request.schedule,
                       request.stages, request.batches, request.micro_batches, 100 * (1 - simulation_.bubble));
  }

  double x(double time) const { return kLeft + time * scale_; }
  static double y(int stage) { return kTop + stage * kRow; }

  void defs() {
    add("<defs>\n"
        "<pattern id=\"back\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\" patternTransform=\"rotate(45)\">"
        "<line x1=\"0\" y1=\"0\" x2=\"0\" y2=\"6\" stroke=\"#a8641a\" stroke-width=\"1.2\" "
        "opacity=\"0.45\"/></pattern>\n"
        "<pattern id=\"dots\" width=\"5\" height=\"5\" patternUnits=\"userSpaceOnUse\">"
        "<circle cx=\"2\" cy=\"2\" r=\"0.9\" fill=\"#5a8a31\" opacity=\"0.7\"/></pattern>\n"
        "<pattern id=\"cross\" width=\"5\" height=\"5\" patternUnits=\"userSpaceOnUse\">"
        "<path d=\"M0 2.5H5M2.5 0V5\" stroke=\"#7446a0\" stroke-width=\"0.7\" opacity=\"0.6\"/></pattern>\n"
        "</defs>\n");
  }

  void row(int stage) {
    const bool shared = plan_.request.ranks() < plan_.request.stages;
    const std::string rank =
        shared ? fmt::format(", rank {}", plan_.request.rank_of_stage[static_cast<size_t>(stage)]) : "";
    add("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.0f}\" fill=\"#f4f4f4\"/>\n", kLeft, y(stage) + 4,
        x(until_) - kLeft, kBox);
    add("<text x=\"10\" y=\"{:.1f}\" font-size=\"11\">stage {}{}</text>\n", y(stage) + 21, stage, rank);
  }

  void swatch(const Look& look, double left, double top, double width, double height) {
    for (const char* fill : {look.fill, look.hatch}) {
      if (fill[0] == '\0') continue;
      const bool hatch = fill == look.hatch;
      add("<rect x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{:.1f}\" fill=\"{}\" stroke=\"{}\" "
          "stroke-width=\"0.8\"/>\n",
          left, top, width, height, hatch ? fmt::format("url(#{})", fill) : std::string(fill), look.stroke);
    }
  }

  void box(const Action& action, const Span& span) {
    const Look* look = look_of(action.kind);
    if (look == nullptr || span.begin > until_) return;
    const double left = x(span.begin), top = y(action.stage) + 4;
    if (action.kind == Kind::step) {
      // A step is thin even if it takes no time: a bar through the row, with a head.
      const double width = std::max(2.0, x(std::min(span.end, until_)) - left);
      swatch(*look, left - (span.end > span.begin ? 0 : 1), top - 3, width, kBox + 6);
      add("<path d=\"M{0:.1f} {1:.1f}l-4 -5h8z\" fill=\"#111111\"/>\n", left + width / 2 - 1, top - 2);
      return;
    }
    const double width = x(std::min(span.end, until_)) - left;
    if (width <= 0) return;
    swatch(*look, left, top, width, kBox);
    if (action.kind == Kind::predict) return;
    const std::string number = std::to_string(action.micro_batch);
    const double size = std::min(12.0, 1.6 * width / static_cast<double>(number.size()));
    if (size < 5) return;
    // A pale ground behind the number, or the hatch makes it hard to read.
    if (look->hatch[0] != '\0')
      add("<rect x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{:.1f}\" fill=\"{}\"/>\n",
          left + width / 2 - 0.32 * size * static_cast<double>(number.size()), top + kBox / 2 - 0.55 * size,
          0.64 * size * static_cast<double>(number.size()), 1.1 * size, look->fill);
    add("<text x=\"{:.2f}\" y=\"{:.1f}\" font-size=\"{:.1f}\" text-anchor=\"middle\">{}</text>\n", left + width / 2,
        top + kBox / 2 + 0.36 * size, size, number);
  }

  void messages() {
    std::map<std::array<int64_t, 3>, std::pair<double, int>> sent;  // edge, direction, micro-batch -> time, stage
    const auto each = [&](Kind kind, auto&& visit) {
      for (size_t rank = 0; rank < plan_.ranks.size(); ++rank)
        for (size_t index = 0; index < plan_.ranks[rank].size(); ++index)
          if (plan_.ranks[rank][index].kind == kind) visit(plan_.ranks[rank][index], simulation_.timeline[rank][index]);
    };
    const auto key = [](const Action& action) {
      return std::array<int64_t, 3>{action.edge, static_cast<int64_t>(action.direction), action.micro_batch};
    };
    each(Kind::send, [&](const Action& action, const Span& span) { sent[key(action)] = {span.end, action.stage}; });
    each(Kind::receive, [&](const Action& action, const Span& span) {
      const auto found = sent.find(key(action));
      if (found == sent.end() || span.end > until_) return;
      const auto [time, stage] = found->second;
      const bool down = action.stage > stage;
      add("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"{}\" stroke-width=\"1\"{}/>\n",
          x(time), y(stage) + 4 + (down ? kBox : 0), x(span.end), y(action.stage) + 4 + (down ? 0 : kBox),
          down ? kForward.stroke : kBackward.stroke, down ? "" : " stroke-dasharray=\"3 2\"");
    });
  }

  void axis(double top) {
    add("<line x1=\"{0:.1f}\" y1=\"{1:.1f}\" x2=\"{2:.1f}\" y2=\"{1:.1f}\" stroke=\"#666666\"/>\n", kLeft, top + 2,
        x(until_));
    double tick = 1;
    while (tick * 12 < until_) tick *= tick == 1 || tick == 10 || tick == 100 ? 5 : 2;
    while (tick > until_ / 3 && tick > 1e-6) tick /= 10;
    for (int index = 0; index * tick <= until_ + 1e-9; ++index) {
      add("<line x1=\"{0:.1f}\" y1=\"{1:.1f}\" x2=\"{0:.1f}\" y2=\"{2:.1f}\" stroke=\"#666666\"/>\n", x(index * tick),
          top + 2, top + 6);
      add("<text x=\"{:.1f}\" y=\"{:.1f}\" font-size=\"10\" fill=\"#444444\" text-anchor=\"middle\">{:g}</text>\n",
          x(index * tick), top + 17, index * tick);
    }
    add("<text x=\"10\" y=\"{:.1f}\" font-size=\"10\" fill=\"#444444\">time{}</text>\n", top + 17,
        options_.unit.empty() ? "" : ", " + options_.unit);
  }

  void legend(double top) {
    double left = kLeft;
    const auto has = [&](Kind kind) {
      return std::any_of(plan_.ranks.begin(), plan_.ranks.end(), [&](const auto& actions) {
        return std::any_of(actions.begin(), actions.end(), [&](const Action& action) { return action.kind == kind; });
      });
    };
    for (const Kind kind : {Kind::forward, Kind::backward, Kind::weight_gradient, Kind::predict, Kind::step}) {
      if (!has(kind)) continue;
      const Look& look = *look_of(kind);
      swatch(look, left, top, kind == Kind::step ? 3 : 18, 14);
      if (kind == Kind::step) add("<path d=\"M{0:.1f} {1:.1f}l-4 -5h8z\" fill=\"#111111\"/>\n", left + 1.5, top + 1);
      const double text = left + (kind == Kind::step ? 9 : 23);
      add("<text x=\"{:.1f}\" y=\"{:.1f}\" font-size=\"11\">{}</text>\n", text, top + 11, look.name);
      left = text + 7.0 * static_cast<double>(std::string_view(look.name).size()) + 14;
    }
    if (!options_.messages || plan_.request.edges.empty()) return;
    add("<line x1=\"{0:.1f}\" y1=\"{1:.1f}\" x2=\"{2:.1f}\" y2=\"{1:.1f}\" stroke=\"{3}\"/>"
        "<text x=\"{4:.1f}\" y=\"{5:.1f}\" font-size=\"11\">activation</text>\n",
        left, top + 7, left + 18, kForward.stroke, left + 23, top + 11);
    left += 100;
    add("<line x1=\"{0:.1f}\" y1=\"{1:.1f}\" x2=\"{2:.1f}\" y2=\"{1:.1f}\" stroke=\"{3}\" stroke-dasharray=\"3 2\"/>"
        "<text x=\"{4:.1f}\" y=\"{5:.1f}\" font-size=\"11\">gradient</text>\n",
        left, top + 7, left + 18, kBackward.stroke, left + 23, top + 11);
  }

  const Plan& plan_;
  const Simulation& simulation_;
  const DrawOptions& options_;
  const double until_;
  const double scale_;
  std::string out_;
};

}  // namespace

std::string draw_svg(const Plan& plan, const Simulation& simulation, const DrawOptions& options) {
  return Painter(plan, simulation, options).paint();
}

}  // namespace ddip::schedule
