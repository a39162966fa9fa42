// The familiar grid: a row for each stage, time from left to right, a box for each computation with the number of its
// micro-batch.
#pragma once

#include <string>

#include "ddip/schedule/plan.h"
#include "ddip/schedule/simulate.h"

namespace ddip::schedule {

struct DrawOptions {
  std::string title;     // empty: what the plan is
  double until = 0;      // the picture ends there; 0: at the end
  double width = 960;    // of the picture, in pixels; a long plan is drawn smaller
  bool messages = true;  // thin lines from the end of a computation to the one that waits for it
  std::string unit;      // of time; empty: as the costs have it
};

// Forwards, backwards, weight gradients and steps differ in colour and in shape, so that nobody needs the colours.
std::string draw_svg(const Plan& plan, const Simulation& simulation, const DrawOptions& options = {});

// For a terminal. At most `columns` wide; longer plans are cut off, and it says so.
std::string draw_text(const Plan& plan, const Simulation& simulation, int columns = 100);

}  // namespace ddip::schedule
