// fp16 and bf16: half the bytes. The communicator sums in 32 bits and rounds once.
#include "ddip/data_parallel/compress/residuals.h"

namespace ddip::data_parallel {
namespace {

class Half : public Compressor {
 public:
  explicit Half(at::ScalarType type) : type_(type) {}

  Outcome reduce(tensors::Communicator& ranks, std::span<const Piece> pieces) override {
    std::vector<at::Tensor> parts;
    for (const Piece& piece : pieces) parts.push_back(piece.gradient.to(type_));
    at::Tensor small = parts.size() == 1 ? parts[0] : at::cat(parts);
    ranks.all_reduce(small, comm::Reduction::mean);
    int64_t begin = 0;
    for (const Piece& piece : pieces) {
      piece.gradient.copy_(small.narrow(0, begin, piece.gradient.numel()));
      begin += piece.gradient.numel();
    }
    // What is not finite anywhere is not finite in the mean, on every rank.
    return {small.nbytes(), all_finite(small)};
  }

 private:
  const at::ScalarType type_;
};

}  // namespace

std::unique_ptr<Compressor> make_half(at::ScalarType type) { return std::make_unique<Half>(type); }

}  // namespace ddip::data_parallel
