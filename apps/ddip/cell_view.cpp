#include "cell_view.h"

#include <fmt/format.h>

#include <algorithm>
#include <sstream>

namespace ddip::app {

using client::CellEvent;
using client::RecordKind;
using wire::json;

namespace {

std::string last_line(const std::string& text) {
  const size_t end = text.find_last_not_of('\n');
  if (end == std::string::npos) return "";
  const size_t begin = text.rfind('\n', end);
  return text.substr(begin == std::string::npos ? 0 : begin + 1,
                     end - (begin == std::string::npos ? 0 : begin + 1) + 1);
}

}  // namespace

json parse_body(const std::string& text) {
  json body = json::parse(text, nullptr, false);
  return body.is_object() ? body : json::object();
}

void CellView::take(const CellEvent& event) {
  switch (event.kind) {
    case RecordKind::output: return output_.write(event.rank, event.stream == 2 ? 2 : 1, event.bytes);
    case RecordKind::display: return on_display(event);
    case RecordKind::rank_done: return on_rank_done(event);
    case RecordKind::cell_done:
      output_.finish_all();
      finished_ = true;
      return;
    case RecordKind::note: {
      const std::string who = event.rank >= 0 ? fmt::format("rank {}: ", event.rank) : "";
      return output_.say(style_.dim("ddip: " + who + one_line(event.bytes)));
    }
    case RecordKind::gap: return output_.say(style_.dim("ddip: " + one_line(event.bytes)));
    case RecordKind::cell_started: return;
  }
}

// Rich displays have a plain form; frames of a display that is updated in place are left out, as are cleared outputs.
void CellView::on_display(const CellEvent& event) {
  const json body = parse_body(event.bytes);
  const std::string kind = body.value("kind", "");
  if (kind != "display" && kind != "result") return;
  const json data = body.value("data", json::object());
  if (!data.contains("text/plain") || !data.at("text/plain").is_string()) return;
  output_.write(event.rank, 1, style_.foreign(data.at("text/plain").get<std::string>()) + "\n");
}

void CellView::on_rank_done(const CellEvent& event) {
  const json body = parse_body(event.bytes);
  const std::string outcome = body.value("outcome", "error");
  outcomes_[event.rank] = outcome;
  output_.finish(event.rank);
  if (outcome == "error") show_failure(event.rank, body.value("traceback", body.value("why", "failed")));
  if (outcome == "lost") {
    std::string text = fmt::format("rank {} is lost: {}", event.rank, body.value("why", "unknown"));
    const json detail = body.value("detail", json::object());
    const std::string stack = detail.is_object() ? detail.value("stack", "") : "";
    if (!stack.empty()) text += "\nwhere it was:\n" + stack;
    show_failure(event.rank, text);
  }
}

// Eight equal tracebacks are one and seven lines that say so.
void CellView::show_failure(int rank, const std::string& text) {
  const std::string prefix = style_.by_rank(rank, fmt::format("[{}]", rank)) + " ";
  auto [same, fresh] = failures_.emplace(plain(text), rank);
  if (!fresh)
    return output_.say(prefix + style_.red(fmt::format("failed as rank {}: {}", same->second, plain(last_line(text)))));
  std::istringstream lines(style_.foreign(text));
  std::string shown;
  for (std::string line; std::getline(lines, line);) shown += (shown.empty() ? "" : "\n") + prefix + line;
  output_.say(shown);
}

std::vector<int> CellView::ranks_that(const std::string& outcome) const {
  std::vector<int> ranks;
  for (const auto& [rank, how] : outcomes_) {
    if (how == outcome) ranks.push_back(rank);
  }
  return ranks;
}

bool CellView::succeeded() const {
  return std::all_of(outcomes_.begin(), outcomes_.end(), [](const auto& entry) { return entry.second == "ok"; });
}

}  // namespace ddip::app
