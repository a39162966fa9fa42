#include "ddip/comm/element.h"

namespace ddip::comm {

const char* name_of(Element element) {
  switch (element) {
    case Element::f32: return "float32";
    case Element::f64: return "float64";
    case Element::f16: return "float16";
    case Element::bf16: return "bfloat16";
    case Element::u8: return "uint8";
    case Element::i8: return "int8";
    case Element::i16: return "int16";
    case Element::i32: return "int32";
    case Element::i64: return "int64";
    case Element::boolean: return "bool";
  }
  return "?";
}

const char* name_of(Reduction reduction) {
  switch (reduction) {
    case Reduction::sum: return "sum";
    case Reduction::mean: return "mean";
    case Reduction::min: return "min";
    case Reduction::max: return "max";
    case Reduction::product: return "product";
    case Reduction::bit_and: return "bit_and";
    case Reduction::bit_or: return "bit_or";
    case Reduction::bit_xor: return "bit_xor";
    case Reduction::scaled_sum: return "scaled sum";
  }
  return "?";
}

}  // namespace ddip::comm
