// The cut for people: a table for the terminal, and a picture.
#pragma once

#include <string>

#include "ddip/partition/file.h"

namespace ddip::partition {

// One row per stage, then what one micro-batch costs, the predicted speed-up and bubble. `micro_batches`: between two
// flushes, for the schedules that have them.
std::string plan_table(const Plan& plan, size_t micro_batches);

// SVG: a box for each stage with its layers and their times, a row for each device, an arrow for each value that leaves
// its stage: strong where it crosses a link.
std::string plan_picture(const Plan& plan);

}  // namespace ddip::partition
