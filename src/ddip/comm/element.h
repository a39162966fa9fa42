// What a buffer holds and how buffers of several ranks become one.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ddip::comm {

// Every type that torch trains or counts with. Others (complex, 8-bit floats) travel as bytes but are not reduced.
enum class Element : uint8_t { f32, f64, f16, bf16, u8, i8, i16, i32, i64, boolean };

enum class Reduction : uint8_t { sum, mean, min, max, product, bit_and, bit_or, bit_xor, scaled_sum };

constexpr size_t size_of(Element element) {
  switch (element) {
    case Element::f64:
    case Element::i64: return 8;
    case Element::f32:
    case Element::i32: return 4;
    case Element::f16:
    case Element::bf16:
    case Element::i16: return 2;
    case Element::u8:
    case Element::i8:
    case Element::boolean: return 1;
  }
  return 0;
}

constexpr bool is_floating(Element element) {
  return element == Element::f32 || element == Element::f64 || element == Element::f16 || element == Element::bf16;
}

const char* name_of(Element element);
const char* name_of(Reduction reduction);

}  // namespace ddip::comm
