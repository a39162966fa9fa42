#include "ddip/tensors/elements.h"

#include <fmt/format.h>

#include "ddip/base/error.h"

namespace ddip::tensors {

using comm::Element;
using comm::Reduction;

comm::Element element_of(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kFloat:
    case at::kComplexFloat: return Element::f32;
    case at::kDouble:
    case at::kComplexDouble: return Element::f64;
    case at::kHalf: return Element::f16;
    case at::kBFloat16: return Element::bf16;
    case at::kByte: return Element::u8;
    case at::kChar: return Element::i8;
    case at::kShort: return Element::i16;
    case at::kInt: return Element::i32;
    case at::kLong: return Element::i64;
    case at::kBool: return Element::boolean;
    default: throw ConfigError(fmt::format("tensors of {} cannot be reduced", c10::toString(tensor.scalar_type())));
  }
}

size_t elements_in(const at::Tensor& tensor) {
  return static_cast<size_t>(tensor.numel()) * (tensor.is_complex() ? 2 : 1);
}

comm::Typed typed(const at::Tensor& tensor, const c10d::ReduceOp& operation) {
  comm::Typed result{element_of(tensor), Reduction::sum, 1.0};
  switch (operation.op_) {
    case c10d::ReduceOp::SUM: break;
    case c10d::ReduceOp::AVG: result.reduction = Reduction::mean; break;
    case c10d::ReduceOp::PRODUCT: result.reduction = Reduction::product; break;
    case c10d::ReduceOp::MIN: result.reduction = Reduction::min; break;
    case c10d::ReduceOp::MAX: result.reduction = Reduction::max; break;
    case c10d::ReduceOp::BAND: result.reduction = Reduction::bit_and; break;
    case c10d::ReduceOp::BOR: result.reduction = Reduction::bit_or; break;
    case c10d::ReduceOp::BXOR: result.reduction = Reduction::bit_xor; break;
    case c10d::ReduceOp::PREMUL_SUM: {
      result.reduction = Reduction::scaled_sum;
      auto* factor = dynamic_cast<c10d::NCCLPreMulSumSupplement*>(operation.supplement_.get());
      if (!factor) throw ConfigError("PREMUL_SUM without its factor");
      result.scale = factor->tensor_factor.defined() ? factor->tensor_factor.item<double>() : factor->double_factor;
      break;
    }
    default: throw ConfigError("this reduction is unknown to ddip");
  }
  if (tensor.is_complex() && result.reduction != Reduction::sum && result.reduction != Reduction::mean &&
      result.reduction != Reduction::scaled_sum)
    throw ConfigError(fmt::format("{} does not exist for complex numbers", comm::name_of(result.reduction)));
  return result;
}

}  // namespace ddip::tensors
