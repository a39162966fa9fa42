#include "ddip/data/npy_header.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>
#include <cstring>
#include <optional>

#include "ddip/base/error.h"

namespace ddip::data {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr size_t kMostHeader = 64u << 10;
constexpr uint64_t kMostBytes = uint64_t{1} << 60;
constexpr size_t kMostDimensions = 32;

[[noreturn]] void refuse(const std::string& why) { throw ConfigError(why); }

// The dictionary in a header, as Python writes it: three keys, texts, True and False, a tuple of numbers.
class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  void skip() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\t')) ++at_;
  }
  bool take(char wanted) {
    skip();
    if (at_ == text_.size() || text_[at_] != wanted) return false;
    ++at_;
    return true;
  }
  void need(char wanted) {
    if (!take(wanted))
      refuse(fmt::format("its header is not a dictionary that NumPy writes ('{}' was expected)", wanted));
  }
  std::string text() {
    skip();
    char quote = at_ < text_.size() ? text_[at_] : '\0';
    if (quote != '\'' && quote != '"') refuse("its header is not a dictionary that NumPy writes (a text was expected)");
    size_t end = text_.find(quote, at_ + 1);
    if (end == std::string_view::npos) refuse("its header ends inside a text");
    std::string found(text_.substr(at_ + 1, end - at_ - 1));
    at_ = end + 1;
    return found;
  }
  bool boolean() {
    skip();
    for (bool value : {true, false}) {
      std::string_view word = value ? "True" : "False";
      if (text_.substr(at_, word.size()) != word) continue;
      at_ += word.size();
      return value;
    }
    refuse("fortran_order is neither True nor False");
  }
  std::vector<uint64_t> shape() {
    need('(');
    std::vector<uint64_t> numbers;
    while (!take(')')) {
      skip();
      if (at_ < text_.size() && text_[at_] == '-') refuse("its shape has a negative number");
      uint64_t value = 0;
      const char* begin = text_.data() + at_;
      auto [end, error] = std::from_chars(begin, text_.data() + text_.size(), value);
      if (error == std::errc::result_out_of_range) refuse("its shape has a number that is too large");
      if (error != std::errc()) refuse("its shape is not a tuple of numbers");
      at_ += static_cast<size_t>(end - begin);
      numbers.push_back(value);
      if (numbers.size() > kMostDimensions)
        refuse(fmt::format("its shape has more than {} dimensions", kMostDimensions));
      if (take(')')) break;
      need(',');
    }
    return numbers;
  }
  bool ended() {
    skip();
    return at_ == text_.size();
  }

 private:
  std::string_view text_;
  size_t at_ = 0;
};

NpyType type_of(const std::string& text) {
  if (text.find('O') != std::string::npos) refuse("it holds Python objects, which need pickle; save numbers instead");
  if (text.size() >= 2 && text[0] == '>')
    refuse(fmt::format("its numbers are big-endian ({}); save them as '<{}'", text, text.substr(1)));
  for (const NpyType& type : {NpyType{'f', 2},
                              {'f', 4},
                              {'f', 8},
                              {'i', 1},
                              {'i', 2},
                              {'i', 4},
                              {'i', 8},
                              {'u', 1},
                              {'u', 2},
                              {'u', 4},
                              {'u', 8},
                              {'b', 1}}) {
    std::string plain = fmt::format("{}{}", type.kind, type.bytes);
    if (text == type.text() || text == "<" + plain || text == "=" + plain) return type;
  }
  refuse(fmt::format("its numbers are of type '{}'; f2, f4, f8, i1-i8, u1-u8 and b1 are read", text.substr(0, 40)));
}

}  // namespace

std::string NpyType::text() const { return fmt::format("{}{}{}", bytes == 1 ? '|' : '<', kind, bytes); }

uint64_t NpyHeader::row_bytes() const {
  uint64_t product = type.bytes;
  for (size_t axis = 1; axis < shape.size(); ++axis) product *= shape[axis];
  return product;
}

uint64_t NpyHeader::data_bytes() const { return rows() * row_bytes(); }

size_t npy_header_size(std::string_view start) {
  if (start.size() < 10) return 0;
  if (start.substr(0, kMagic.size()) != kMagic) refuse("it does not begin as a .npy file does");
  const auto* bytes = reinterpret_cast<const unsigned char*>(start.data());
  int version = bytes[6];
  if (version < 1 || version > 3 || bytes[7] != 0)
    refuse(fmt::format("its version is {}.{}; 1.0, 2.0 and 3.0 are read", version, bytes[7]));
  size_t length = 0, prefix = version == 1 ? 10 : 12;
  if (start.size() < prefix) return 0;
  for (size_t index = prefix; index-- > 8;) length = length << 8 | bytes[index];
  if (length > kMostHeader) refuse(fmt::format("its header is {} bytes long; {} are read", length, kMostHeader));
  return prefix + length;
}

NpyHeader parse_npy_header(std::string_view start) {
  NpyHeader header;
  header.header_bytes = npy_header_size(start);
  if (header.header_bytes == 0 || header.header_bytes > start.size()) refuse("it ends inside its header");
  size_t prefix = start[6] == 1 ? 10 : 12;
  Reader reader(start.substr(prefix, header.header_bytes - prefix));
  std::optional<NpyType> type;
  std::optional<bool> fortran;
  std::optional<std::vector<uint64_t>> shape;
  reader.need('{');
  while (!reader.take('}')) {
    std::string key = reader.text();
    reader.need(':');
    if (key == "descr" && !type)
      type = type_of(reader.text());
    else if (key == "fortran_order" && !fortran)
      fortran = reader.boolean();
    else if (key == "shape" && !shape)
      shape = reader.shape();
    else
      refuse(fmt::format("its header has the key '{}' that does not belong there", key.substr(0, 40)));
    if (reader.take('}')) break;
    reader.need(',');
  }
  if (!reader.ended()) refuse("its header goes on behind the dictionary");
  if (!type || !fortran || !shape) refuse("its header lacks descr, fortran_order or shape");
  if (*fortran && shape->size() > 1) refuse("its numbers are in Fortran order; save them with numpy.ascontiguousarray");
  uint64_t bytes = type->bytes;
  for (uint64_t size : *shape) {
    if (size != 0 && bytes > kMostBytes / size)
      refuse(fmt::format("its shape ({}) is too large", fmt::join(*shape, ", ")));
    bytes *= size;
  }
  // Products of parts of the shape must not overflow either where a dimension is zero.
  uint64_t row = type->bytes;
  for (size_t axis = 1; axis < shape->size(); ++axis) {
    if ((*shape)[axis] != 0 && row > kMostBytes / (*shape)[axis])
      refuse(fmt::format("its shape ({}) is too large", fmt::join(*shape, ", ")));
    row *= (*shape)[axis];
  }
  header.type = *type;
  header.shape = std::move(*shape);
  return header;
}

std::string format_npy_header(const NpyType& type, const std::vector<uint64_t>& shape) {
  std::string text = fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({}{}), }}", type.text(),
                                 fmt::join(shape, ", "), shape.size() == 1 ? "," : "");
  // NumPy aligns the data to 64 bytes and ends the header with a line's end.
  size_t whole = (10 + text.size() + 1 + 63) / 64 * 64;
  text.append(whole - 10 - text.size() - 1, ' ');
  text += '\n';
  std::string header(kMagic);
  header += '\x01';
  header += '\0';
  header += static_cast<char>(text.size() & 0xff);
  header += static_cast<char>(text.size() >> 8);
  return header + text;
}

}  // namespace ddip::data
