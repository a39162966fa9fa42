// The cut as a small file that a person may read and edit. The layers and edges in it are those of the model; editing
// means moving names between stages. Whatever is read is checked as if a stranger had written it.
#pragma once

#include <string>
#include <string_view>

#include "ddip/partition/cost.h"

namespace ddip::partition {

struct Plan {
  std::string model;  // where it came from, for people: "net.py:make"
  Graph graph;
  Cut cut;
  Costs costs;
};

std::string plan_text(const Plan& plan);

// Throws ConfigError, one line that begins with `where`: no JSON, a key that is missing, unknown (with the nearest) or
// there twice, a wrong type; more stages than layers, a layer in no stage or in two, an unknown layer (with the
// nearest), an empty stage, an edge that leads back, a device without a stage, a stage over the memory cap.
Plan read_plan(std::string_view text, const std::string& where);

// A plan for another model, or for this one before it was changed. Throws ConfigError: the first layer that only one of
// them has (with the nearest), an edge that only one of them has, or one whose shape differs (names both layers).
// `model`: its graph as it is now; its costs may differ.
void check_plan_is_for(const Plan& plan, const Graph& model);

// Throws ConfigError with the equation, unless world = replicas × devices.
void check_world(size_t world, size_t replicas, size_t devices);

}  // namespace ddip::partition
