#pragma once

#include <cstring>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <nlohmann/json.hpp>
#include <sys/socket.h>
#include <unistd.h>

namespace levin::testing {

struct HttpReply {
  int status = 0;  // 0: the connection ended without an answer
  std::string head, body;

  nlohmann::json json() const { return nlohmann::json::parse(body); }
  std::string error(const char* field) const {
    const auto value = json().at("error").at(field);
    return value.is_null() ? "" : value.get<std::string>();
  }
};

/// A connection that says exactly what it is told to. It closes when it goes.
class HttpConnection {
 public:
  explicit HttpConnection(int port) : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<uint16_t>(port));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (::connect(socket_, reinterpret_cast<sockaddr*>(&to), sizeof(to)) != 0)
      throw std::runtime_error(std::string("connect: ") + std::strerror(errno));
  }
  ~HttpConnection() { close(); }
  HttpConnection(const HttpConnection&) = delete;
  HttpConnection& operator=(const HttpConnection&) = delete;

  void close() {
    if (socket_ >= 0) ::close(socket_);
    socket_ = -1;
  }
  /// The other side sees the end of what this one says, and may still answer.
  void end_writing() { ::shutdown(socket_, SHUT_WR); }
  bool send(std::string_view text) {
    while (!text.empty()) {
      const auto sent = ::send(socket_, text.data(), text.size(), MSG_NOSIGNAL);
      if (sent <= 0) return false;
      text.remove_prefix(static_cast<size_t>(sent));
    }
    return true;
  }
  /// More of what came; false at the end.
  bool receive(std::string& into) {
    char part[4096];
    const auto count = ::recv(socket_, part, sizeof(part), 0);
    if (count > 0) into.append(part, static_cast<size_t>(count));
    return count > 0;
  }

 private:
  int socket_;
};

inline std::string http_text(const std::string& method, const std::string& path, const std::string& body = {},
                             const std::vector<std::string>& headers = {}) {
  auto text = method + " " + path + " HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n";
  for (const auto& header : headers) text += header + "\r\n";
  if (method == "POST")
    text += "Content-Type: application/json\r\nContent-Length: " + std::to_string(body.size()) + "\r\n";
  return text + "\r\n" + body;
}

/// What was sent in chunks, in one piece.
inline std::string without_chunks(std::string_view text) {
  std::string all;
  for (;;) {
    const auto line = text.find("\r\n");
    if (line == text.npos) return all;
    const auto size = std::stoul(std::string(text.substr(0, line)), nullptr, 16);
    if (size == 0) return all;
    all += text.substr(line + 2, size);
    text.remove_prefix(std::min(text.size(), line + 4 + size));
  }
}

inline HttpReply reply_of(const std::string& text) {
  HttpReply reply;
  const auto end = text.find("\r\n\r\n");
  if (end == text.npos) return reply;
  reply.head = text.substr(0, end);
  reply.status = std::stoi(reply.head.substr(reply.head.find(' ') + 1));
  reply.body = text.substr(end + 4);
  if (reply.head.find("Transfer-Encoding: chunked") != reply.head.npos) reply.body = without_chunks(reply.body);
  return reply;
}

/// Sends these bytes on a connection of their own.
inline HttpReply http_raw(int port, const std::string& bytes) {
  HttpConnection connection(port);
  connection.send(bytes);
  std::string text;
  while (connection.receive(text)) {
  }
  return reply_of(text);
}

inline HttpReply http(int port, const std::string& method, const std::string& path, const std::string& body = {},
                      const std::vector<std::string>& headers = {}) {
  return http_raw(port, http_text(method, path, body, headers));
}

/// The JSON of server-sent events, without the last one, [DONE].
inline std::vector<nlohmann::json> events_of(const std::string& body) {
  std::vector<nlohmann::json> events;
  for (size_t at = 0; (at = body.find("data: ", at)) != body.npos;) {
    const auto end = body.find("\n\n", at);
    const auto text = body.substr(at + 6, end - at - 6);
    if (text != "[DONE]") events.push_back(nlohmann::json::parse(text));
    at = end;
  }
  return events;
}

}  // namespace levin::testing
