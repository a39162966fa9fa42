// Makes the gradients of all ranks their mean while backward runs. Each gradient is moved at most once, into memory
// that the ranks share, and stays there; a bucket travels when its last gradient is in.
//
// Nothing depends on how the model is called: a hook on every parameter says when its gradient is there, and whatever
// got none by the end of a backward was not used by it. What was used is agreed on at the end of each backward; the
// ranks expect the same the next time, so that buckets can travel early. A parameter that nobody used keeps its
// gradient as it was, and a bucket of such parameters does not travel (one half of a GAN does not pay for the other).
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "ddip/data_parallel/bucket_plan.h"
#include "ddip/data_parallel/compress/compressor.h"
#include "ddip/tensors/communicator.h"
#include "ddip/tensors/worker_thread.h"

namespace ddip::data_parallel {

struct ReducerOptions {
  BucketSizes buckets;
  bool find_unused = true;    // false: every parameter must get a gradient in every backward
  bool static_graph = false;  // what the first backward used is what every one uses
  // A step in which a value is not finite is counted; its gradients are dropped on all ranks, or left for a GradScaler.
  bool keep_nonfinite = false;
  std::shared_ptr<Compressor> compressor;  // null: gradients travel as they are. Outlives a reducer, with what it keeps
  // How an error leaves a backward: Python wants its own type.
  std::function<void(std::exception_ptr)> rethrow = [](std::exception_ptr error) { std::rethrow_exception(error); };
};

// Sums since the last call of take_stats.
struct ReducerStats {
  uint64_t steps = 0;          // backwards that were synchronised
  uint64_t nonfinite = 0;      // of these: a value was not finite, on any rank; the same count on all ranks
  uint64_t skipped = 0;        // of these: dropped, or left without meaning by compression
  double compute_seconds = 0;  // from the first use of the model (or the first gradient) to the end of backward
  double exposed_seconds = 0;  // communication that backward had to wait for
  double busy_seconds = 0;     // communication in all
  std::vector<double> waited;  // for each rank to come; empty where the communicator does not know
  uint64_t gradient_bytes = 0;
  uint64_t copied_bytes = 0;  // moved into the shared memory
  uint64_t sent_bytes = 0;    // put on the wire by this rank
  // of the last backward, in seconds since its first gradient
  struct Travel {
    size_t bucket;
    double ready, begun, ended;
  };
  std::vector<Travel> timeline;
  double backward_ended = 0;
};

class Reducer : public std::enable_shared_from_this<Reducer> {
 public:
  using Communicator = tensors::Communicator;

  // All ranks, with the same parameters in the same order.
  static std::shared_ptr<Reducer> create(std::shared_ptr<Communicator> ranks, std::vector<at::Tensor> parameters,
                                         std::vector<std::string> names, ReducerOptions options);
  ~Reducer();

  // Whether these are still the tensors that were planned for (nothing moved, replaced, or of another type). Takes note
  // of parameters that were frozen and are not any more.
  bool fits(const std::vector<at::Tensor>& parameters);

  // Between backwards. Without sync, gradients only add up.
  void set_sync(bool sync) { sync_ = sync; }
  bool sync() const { return sync_; }
  // Something is computed with the model: the first such moment since the last backward is where computing began.
  void note_forward();

  // Uneven inputs: while joining, every rank says at each step what it does, and a rank without data takes part with
  // nothing. `end_join` returns when all ranks have ended; the result is the rank whose model is the newest.
  void begin_join(bool divide_by_all);
  // It ended with an error: no rank waits for another's data any more.
  void abandon_join() { joining_ = false; }
  // What each rank is at; the lowest rank that still has data.
  int announce_forward();
  // `on_forward(root)`: takes part in what the others do in a forward.
  int end_join(const std::function<void(int root)>& on_forward);
  bool joining() const { return joining_; }

  // Gradients are somebody else's business from now on.
  void retire() { retired_ = true; }

  // Returns when all that has left has arrived.
  void drain();
  const std::vector<at::Tensor>& parameters() const { return parameters_; }
  const std::vector<std::string>& names() const { return names_; }

  // How the gradients are divided among buckets: their numbers in the order of the plan, then how many of them were
  // used. What compression sends depends on it.
  std::vector<int64_t> order() const;
  // Throws ConfigError if it is none of these parameters'.
  void require_order(const std::vector<int64_t>& order) const;
  // Between backwards, on all ranks: as rank 0 says, for good. REQUIRES: it is one.
  void plan_in_order(std::vector<int64_t> order);

  ReducerStats take_stats();
  size_t bucket_count() const { return plan_.buckets.size(); }
  const BucketPlan& plan() const { return plan_; }

 private:
  using Clock = std::chrono::steady_clock;
  using Accumulator = decltype(torch::autograd::impl::grad_accumulator(std::declval<at::Tensor>()));
  enum class Used : uint8_t { no, dense, sparse };
  enum class Doing : int32_t { nothing, forward, backward };

  Reducer(std::shared_ptr<Communicator> ranks, std::vector<at::Tensor> parameters, std::vector<std::string> names,
          ReducerOptions options);

  void plan(const std::vector<size_t>& order, size_t used);
  void attach(size_t index);
  void expect(const std::vector<Used>& used);

  void guarded(const std::function<void()>& body) const;
  void on_gradient(size_t index);
  void begin_backward();
  void reset();
  void launch_complete();
  void launch(size_t bucket, const std::vector<bool>& in_it, bool waiting);
  void finish();
  // The name of a parameter that should have got a gradient and did not, if there is one.
  std::string finish_step();
  void agree_on_used(std::vector<Used>& used);
  void reduce_late(const std::vector<Used>& used);
  void reduce_sparse(const std::vector<Used>& used);
  void install(const std::vector<Used>& used);
  void rebuild();
  void plan_like_rank_0(std::vector<int64_t> order);
  void throw_error() const;  // our thread's, if it had one
  [[noreturn]] void drop(std::exception_ptr error);
  void drop_gradients();
  void spoil_gradients();
  void note_sum(const at::Tensor& reduced, std::vector<size_t> members);
  void look_at_sums();

  // Nothing is agreed on at the end of a backward: what is used is known.
  bool is_fixed() const;
  bool lies_in_slot(size_t index) const;
  bool is_sparse(size_t index) const;
  void move_to_slot(size_t index);
  at::Tensor flat_of(size_t index) const;
  // `waiting`: on the calling thread if nothing is before it.
  void on_thread(std::function<void()> task, bool waiting);
  std::vector<Doing> announce(Doing doing);
  void take_part_in_backward(int with_data);
  double since_first(Clock::time_point time) const;
  static double seconds(Clock::duration duration) { return std::chrono::duration<double>(duration).count(); }

  const std::shared_ptr<Communicator> ranks_;
  const std::vector<at::Tensor> parameters_;
  const std::vector<std::string> names_;
  const ReducerOptions options_;
  const std::shared_ptr<Compressor> compressor_;

  std::vector<Gradient> gradients_;
  std::vector<at::TensorOptions> kinds_;
  BucketPlan plan_;
  std::vector<size_t> planned_order_;
  size_t planned_used_ = 0;
  std::vector<at::Tensor> memory_;  // by kind
  std::vector<at::Tensor> flats_;   // by bucket
  std::vector<at::Tensor> views_;   // by parameter, in its shape and strides
  std::vector<Accumulator> accumulators_;
  std::vector<uintptr_t> hooks_;
  bool rebuilt_ = false;
  bool keeps_order_ = false;  // what compression sends depends on it, and a run that goes on must send the same

  bool sync_ = true;
  // What all ranks expect to be used, and what was used the last time; the same on all ranks.
  std::vector<bool> expected_;
  std::vector<size_t> travelling_;  // buckets that hold something expected, in order
  std::vector<Used> last_used_;

  // of the backward that is under way
  std::mutex mutex_;
  bool active_ = false;
  const std::shared_ptr<std::atomic<bool>> broken_;  // the backward under way ended with an error
  std::vector<bool> ready_;
  std::vector<bool> touched_;   // by a backward without sync, since the last one with
  std::vector<bool> launched_;  // by bucket
  std::vector<bool> write_back_;
  std::vector<size_t> missing_;  // by bucket: expected gradients that are not there yet
  std::vector<size_t> order_;
  size_t next_ = 0;  // into travelling_
  double rescale_ = 1.0;
  bool taking_part_ = false;

  std::atomic<bool> retired_ = false;
  bool joining_ = false;
  bool divide_by_all_ = false;
  int newest_ = 0;

  std::exception_ptr error_;  // of our thread
  bool finite_ = true;
  // What travelled without compression: a sum tells whether a closer look is needed. Read at the end, so that a GPU is
  // waited for once.
  struct Sum {
    at::Tensor value;
    std::vector<size_t> members;
  };
  std::vector<Sum> sums_;

  Clock::time_point forward_begun_{};
  Clock::time_point first_gradient_{};
  ReducerStats stats_;
  std::vector<double> waited_before_;
  tensors::WorkerThread& thread_;  // of ranks_
};

}  // namespace ddip::data_parallel
