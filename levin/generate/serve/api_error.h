#pragma once

#include <string>

#include "levin/core/error.h"

namespace levin::serve {

/// What a client did wrong, or why it cannot be served now: an HTTP status and the fields of OpenAI's errors.
class ApiError : public Error {
 public:
  /// `param`: the field of the request, if one is meant. `code`: a word for programs, if there is one.
  ApiError(int status, const std::string& message, std::string param = {}, std::string code = {})
      : Error(message), status_(status), param_(std::move(param)), code_(std::move(code)) {}

  int status() const { return status_; }
  const std::string& param() const { return param_; }
  const std::string& code() const { return code_; }

 private:
  int status_;
  std::string param_, code_;
};

/// {"error": {"message", "type", "param", "code"}}
std::string error_json(int status, const std::string& message, const std::string& param = {},
                       const std::string& code = {});
std::string error_json(const ApiError& error);

}  // namespace levin::serve
