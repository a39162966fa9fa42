// The records of a cell as text: output by rank, displays, and how each rank ended.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "ddip/client/client.h"
#include "rank_output.h"

namespace ddip::app {

class CellView {
 public:
  // REQUIRES: `output` outlives this.
  CellView(RankOutput& output, Style style) : output_(output), style_(style) {}

  void take(const client::CellEvent& event);

  bool finished() const { return finished_; }
  // Ranks by how they ended: "ok", "error", "interrupted" or "lost".
  std::vector<int> ranks_that(const std::string& outcome) const;
  bool succeeded() const;

 private:
  void on_display(const client::CellEvent& event);
  void on_rank_done(const client::CellEvent& event);
  void show_failure(int rank, const std::string& text);

  RankOutput& output_;
  const Style style_;
  std::map<int, std::string> outcomes_;
  std::map<std::string, int> failures_;  // a traceback, and the rank it was shown for
  bool finished_ = false;
};

// A record's JSON body; an empty object if it is none.
wire::json parse_body(const std::string& text);

}  // namespace ddip::app
