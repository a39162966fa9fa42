#include "explanation.h"

#include <fmt/format.h>

#include <cstdio>
#include <map>
#include <sstream>

#include "cell_view.h"
#include "ddip/client/explain.h"
#include "ddip/coordinator/journal.h"
#include "style.h"

namespace ddip::app {

using wire::json;

namespace {

constexpr size_t kLongestLine = 100;

std::string trimmed(const std::string& text) {
  const size_t begin = text.find_first_not_of(" \t\r");
  return begin == std::string::npos ? "" : text.substr(begin, text.find_last_not_of(" \t\r") - begin + 1);
}

std::string source_line(const std::filesystem::path& journal, uint64_t cell, int number) {
  std::string found;
  coordinator::read_journal(journal, 0, [&](const coordinator::Record& record) {
    if (record.kind != coordinator::RecordKind::cell_started || record.cell != cell) return true;
    std::istringstream source(parse_body(record.body).value("source", ""));
    std::string line;
    for (int count = 0; count < number && std::getline(source, line); ++count) {
    }
    found = trimmed(line);
    return false;
  });
  return shortened(found, kLongestLine);
}

// "<cell 4>, line 2 in f" → the line's text; empty for a frame of a file.
std::string text_of(const std::string& frame, const std::filesystem::path& journal) {
  unsigned long cell = 0;
  int line = 0;
  if (std::sscanf(frame.c_str(), "<cell %lu>, line %d", &cell, &line) != 2) return "";
  return source_line(journal, cell, line);
}

void replace_all(std::string& text, const std::string& what, const std::string& by) {
  for (size_t at = 0; (at = text.find(what, at)) != std::string::npos; at += by.size())
    text.replace(at, what.size(), by);
}

}  // namespace

std::vector<std::string> explanation(const json& why, const std::filesystem::path& journal) {
  std::map<std::string, std::string> texts;  // by frame
  for (const json& rank : why.at("ranks")) {
    const std::string frame = client::user_frame(rank.value("stack", ""));
    if (!frame.empty() && !texts.contains(frame)) texts[frame] = text_of(frame, journal);
  }
  std::vector<std::string> lines = client::explain(why);
  for (std::string& line : lines) {
    for (const auto& [frame, text] : texts) {
      if (!text.empty()) replace_all(line, frame, fmt::format("{} ({})", frame, text));
    }
  }
  return lines;
}

std::string place_of(const json& rank, const std::filesystem::path& journal) {
  if (rank.contains("silent")) return rank.value("silent", "");
  const std::string frame = client::user_frame(rank.value("stack", ""));
  if (frame.empty()) return "in native code, without a Python frame";
  const std::string text = text_of(frame, journal);
  return text.empty() ? frame : fmt::format("{} ({})", frame, text);
}

}  // namespace ddip::app
