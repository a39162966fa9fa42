// A seeded, simulated cluster around the membership decisions: workers that start, hang, die at start or later; reports
// that are late, doubled, reordered or lost with their sender; kills that take long; a user who replaces and stops at
// random. No clock, thread or process: one seed is one history, replayed exactly. After every event ClusterInvariants
// is asked whether all is well; once faults stop, every rank must be ready or announced lost, replacing the lost ones
// must make the group whole, and Stop must end everything.
#pragma once

#include <cstdint>
#include <string>

#include "ddip/membership/membership.h"
#include "ddip/testing/cluster_invariants.h"

namespace ddip::testing {

// What is under test. Tests pass rules with a planted bug to see that the simulator notices.
struct Rules {
  membership::Decision (*decide)(membership::State, const membership::Event&, membership::Time,
                                 const membership::Options&) = membership::decide;
  bool (*accepts_epoch)(const membership::State&, uint32_t) = membership::accepts_epoch;
};

struct SimulationResult {
  std::string violation;  // the first broken invariant; empty if all held
  std::string trace;      // one line per decision, with Trace::on
  Seen seen;
};

enum class Trace { off, on };

SimulationResult simulate(uint64_t seed, const Rules& rules = {}, Trace trace = Trace::off);

}  // namespace ddip::testing
