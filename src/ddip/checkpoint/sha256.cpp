#include "ddip/checkpoint/sha256.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include "ddip/base/check.h"

namespace ddip::checkpoint {

struct Sha256::State {
  EVP_MD_CTX* context = EVP_MD_CTX_new();
  ~State() { EVP_MD_CTX_free(context); }
};

Sha256::Sha256() : state_(std::make_unique<State>()) {
  DDIP_CHECK(state_->context != nullptr && EVP_DigestInit_ex(state_->context, EVP_sha256(), nullptr) == 1,
             "OpenSSL has SHA-256");
}

Sha256::~Sha256() = default;

void Sha256::add(std::span<const std::byte> bytes) { EVP_DigestUpdate(state_->context, bytes.data(), bytes.size()); }

std::string Sha256::hexadecimal() {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  EVP_DigestFinal_ex(state_->context, digest, &size);
  std::string text;
  for (unsigned int index = 0; index < size; ++index) text += fmt::format("{:02x}", digest[index]);
  return text;
}

}  // namespace ddip::checkpoint
