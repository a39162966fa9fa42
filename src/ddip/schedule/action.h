// One thing that a rank does. A plan is a list of these for each rank, and nothing else: whoever can read the list
// knows the schedule.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace ddip::schedule {

enum class Kind : uint8_t {
  receive,          // waits until its message is there
  forward,          // of a micro-batch on a stage
  send,             // asynchronous: it only hands the message over
  backward,         // gradients of inputs and weights; of inputs only where a weight_gradient follows
  weight_gradient,  // the rest of a backward that was split
  step,             // of the stage's optimizer
  stash,            // keep the weights that this micro-batch's forward reads, until its backward
  predict,          // the weights of the next forward, `staleness` steps ahead
  retire,           // waits until a message that was sent has been taken: its memory is free
  // Nothing of this rank is under way: no message, no activation, no gradient that is not in the weights. Every rank
  // has it after the same micro-batch.
  drain,
};

enum class Direction : uint8_t { none, activation, gradient };

struct Action {
  Kind kind = Kind::forward;
  Direction direction = Direction::none;  // of receive, send and retire
  int stage = -1;                         // of messages: the stage at this end. None for drain
  int64_t micro_batch = -1;               // counted over the whole run. Of step and drain: the last one that is in it
  int edge = -1;                          // of receive, send and retire: which of the plan's edges
  // How many steps the stage had done when these weights were made. forward, predict, stash: the weights that the
  // forward reads. backward, weight_gradient: the newest at that moment; the forward read `version - staleness`.
  // step: the version it makes.
  int64_t version = -1;
  // forward, predict, stash, backward, weight_gradient: the steps between the weights that the forward reads and those
  // that are newest at its own backward.
  int staleness = 0;

  friend bool operator==(const Action&, const Action&) = default;
};

std::string_view name_of(Kind kind);
std::string_view name_of(Direction direction);

// "forward stage=0 micro_batch=3 version=1 staleness=2": a line of a plan's file, and what errors name.
std::string to_text(const Action& action);

// The opposite. Throws ConfigError: one line that quotes the text.
Action parse_action(std::string_view text);

}  // namespace ddip::schedule
