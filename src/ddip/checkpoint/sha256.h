// SHA-256 of bytes that come piece by piece.
#pragma once

#include <memory>
#include <span>
#include <string>

namespace ddip::checkpoint {

class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;

  void add(std::span<const std::byte> bytes);
  std::string hexadecimal();  // once

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ddip::checkpoint
