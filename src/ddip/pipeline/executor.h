// Runs a rank's list of actions. The same for every schedule: what happens when is in the list, which weights are used
// is the policy's matter, what is computed is the stage's.
//
// It runs on the calling thread. Between actions and while it waits it polls for an interrupt. When one rank fails, its
// neighbours get a message that says so instead of the one they wait for, and pass it on: all ranks end, and can run
// again.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "ddip/pipeline/alarm.h"
#include "ddip/pipeline/border.h"
#include "ddip/pipeline/channel.h"
#include "ddip/pipeline/loss_scale.h"
#include "ddip/pipeline/norms.h"
#include "ddip/pipeline/record.h"
#include "ddip/pipeline/split_backward.h"
#include "ddip/pipeline/stage.h"
#include "ddip/pipeline/wiring.h"
#include "ddip/schedule/ready.h"

namespace ddip::pipeline {

struct RunOptions {
  bool training = true;           // otherwise: forwards only, without graphs
  uint64_t seed = 0;              // of the micro-batches' random numbers
  int64_t first_micro_batch = 0;  // of this run, counted over all runs: for the random numbers
  // Asynchronous: micro-batches of a full step; a step of fewer has a smaller rate. 0: every step is a full one.
  int step_size = 0;
  // Standard deviation of the noise that each forward and its backward have on their weights; 0: none.
  double smoothing_radius = 0;
  // Told of each action when it is done; it must be quick.
  std::function<void(const Record&)> progress;
};

// What stages tell each other of their gradients before a step.
struct Telling {
  bool global_norm = false;  // a step's limit looks at all stages' gradients, otherwise each its own
  // The loss is scaled; whether a scale is too large is seen in all stages' gradients.
  std::optional<LossScale::Options> loss_scale;
  int delay = 0;           // steps: how old is what is known of all stages
  std::vector<int> ranks;  // of a replica, that have weights, or all of them where the loss is scaled

  bool any() const { return global_norm || loss_scale; }
};

// What stages have told each other in earlier runs, for who saves it.
struct Heard {
  std::map<int64_t, double> squares;      // of the last steps' gradients, as the next run counts its steps
  std::optional<LossScale::State> scale;  // where the last stage is
};

class Executor {
 public:
  // All ranks together, with the same arrangement.
  Executor(std::shared_ptr<tensors::Communicator> ranks, std::vector<Stage> stages, Arrangement arrangement,
           Telling telling, Poll poll);

  // All ranks together. Throws what a stage threw, or StageFailed. The record speaks of `actions`, which must outlive
  // it.
  Record run(const std::vector<schedule::Action>& actions, const RunOptions& options);
  // Likewise, but each rank does what is there (schedule/ready.h). `request`: the plan's. `actions`: what the plan has
  // for this rank; afterwards what was done instead, which the record speaks of.
  Record run_ready(const schedule::Request& request, std::vector<schedule::Action>& actions, const RunOptions& options);

  // Before its end, by who holds a lock that threads of ours may want: none of them is left when it returns.
  void end_messages();

  const std::vector<Stage>& stages() const { return stages_; }
  // Between runs. What was heard may be of another pipeline's run, whose steps were known sooner or later, or of one in
  // another precision.
  Heard heard() const;
  void restore(Heard heard);

 private:
  // A micro-batch between its forward and its backward on one stage.
  struct Flight {
    std::map<int, Message> arrived;    // activations, by edge
    std::map<int, Message> gradients;  // likewise
    std::vector<Value> inputs;         // for a recomputation
    std::vector<Entry> entries;        // by incoming edge
    std::map<int, Value> outputs;      // until they are sent, by outgoing edge
    std::map<int, Exit> exits;
    std::map<int, Value> input_gradients;  // until they are sent, by incoming edge
    Roots roots;                           // losses of the stage itself
    size_t auxiliary = 0;                  // so many of them, the first ones, are beside the model's loss
    std::unique_ptr<SplitBackward> later;  // the gradients of its weights are still to come
    Used used;
    int64_t samples = 0;
    double loss_count = 0;
    double loss_scale = 1;  // of its gradients
    uint64_t fingerprint = 0;
  };

  Stage& stage(int index);
  Flight& flight(const schedule::Action& action) { return flights_[{action.stage, action.micro_batch}]; }
  // Whether the first and the last stage read the samples on ranks of their own, which must agree.
  bool reads_twice() const;
  bool is_local(int edge) const;
  bool tells(const Stage& stage) const;  // the others about its gradients
  size_t link_of(const schedule::Action& action) const;
  void execute(const schedule::Action& action, Done& done);
  void receive(const schedule::Action& action);
  void send(const schedule::Action& action);
  void forward(const schedule::Action& action, Done& done);
  void take_inputs(const schedule::Action& action, Flight& flight);
  void compute(const schedule::Action& action, Flight& flight, bool with_graph, bool again);
  void backward(const schedule::Action& action, Done& done);
  void run_graph(const schedule::Action& action, Flight& flight);
  void weight_gradients(const schedule::Action& action, Done& done);
  void end_if_over(const schedule::Action& action);
  void step(const schedule::Action& action, Done& done);
  void step(Stage& stage, const Counts& all, const Versions::Limit& limit, Done& done);
  void step_waiting(double whole, Done& done);
  Ring ring_of(const Stage& stage);

  // `planned`: what has to be prepared for. `done`: what the record speaks of.
  Record run(const std::vector<schedule::Action>& planned, std::span<const schedule::Action> done,
             const RunOptions& options, const std::function<void()>& all);
  void perform(const schedule::Action& action, double begin);
  double now() const;  // seconds since the run's beginning
  void perform_ready(schedule::ReadyOrder& order, std::vector<schedule::Action>& done);
  // The first message of these actions that has not come.
  std::optional<Completion> awaited(const std::vector<schedule::Action>& actions);
  void prepare(const std::vector<schedule::Action>& actions);
  void poll();
  void fail(const std::string& why);
  void agree(const std::string& why);
  void reset();
  std::string place(const schedule::Action& action) const;

  const std::shared_ptr<tensors::Communicator> ranks_;
  std::vector<Stage> stages_;
  const Arrangement arrangement_;
  const int replica_;
  const Telling telling_;
  const Wiring wiring_;
  const Poll interrupted_;
  const Poll poll_;  // interrupts and alarms
  std::unique_ptr<Alarms> alarms_;
  std::map<size_t, Sender> senders_;      // by link
  std::map<size_t, Receiver> receivers_;  // likewise
  std::unique_ptr<Norms> norms_;
  std::optional<LossScale> loss_scale_;
  std::unique_ptr<AfterStream> stream_;  // where tensors go by lanes; it ends before the channels that it calls
  // of one run
  RunOptions options_;
  bool ready_ = false;                     // the order of actions is found while it runs
  const schedule::Action* now_ = nullptr;  // for people
  std::chrono::steady_clock::time_point started_;
  Record record_;
  std::map<std::pair<int, int64_t>, Flight> flights_;
  std::set<int> split_stages_;    // the plan has their backwards in two parts
  std::set<int> reached_;         // a backward came to their weights
  std::map<int, int64_t> steps_;  // of each stage
  // Steps that wait for the norm of this rank's other stages, with the place of their record.
  struct Waiting {
    Stage* stage;
    Counts all;
    double norm;  // its own
    size_t place;
  };
  std::vector<Waiting> waiting_;
};

}  // namespace ddip::pipeline
