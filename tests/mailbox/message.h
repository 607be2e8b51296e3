/* What travels: a header, and the bytes of payload that it announces. Both ends run on one machine: native byte order.
 *
 * | kind   | says                                                              | payload      |
 * |--------|-------------------------------------------------------------------|--------------|
 * | PUT    | these bytes to (region, offset)                                   | a fragment   |
 * | SIGNAL | the word at (region, offset) is set or raised by `value`          |              |
 * | GET    | `value` bytes of (region, offset) are wanted                      |              |
 * | ATOMIC | the word at (region, offset), `value` and `compare`               |              |
 * | NOP    | nothing: a fence, a put of nothing, an operation that was stopped |              |
 * | ACK    | all operations of the queue before `position` are executed        |              |
 * | NACK   | the operation at `position` failed, `value` says why; none after it runs |       |
 * | REPLY  | bytes of the result of the operation at `position`, from `offset` | a fragment   |
 * | FAULT  | the sender's fault is `value`                                     |              |
 * | LEFT   | the sender is done                                                |              |
 * | ASK    | question `action` with `value`; its number is `position`          |              |
 * | ANSWER | `value` is the answer to the question of that number              |              |
 *
 * A stream keeps order and messages are executed in order: hence every put is ordered, every signal strong, and a fence
 * free, but behind a get: see send.c. */

#ifndef MAILBOX_MESSAGE_H
#define MAILBOX_MESSAGE_H

#include <stdint.h>

enum {
    MESSAGE_PUT = 1,
    MESSAGE_SIGNAL,
    MESSAGE_GET,
    MESSAGE_ATOMIC,
    MESSAGE_NOP,
    MESSAGE_ACK,
    MESSAGE_NACK,
    MESSAGE_REPLY,
    MESSAGE_FAULT,
    MESSAGE_LEFT,
    MESSAGE_ASK,
    MESSAGE_ANSWER,
};

/* Why an operation failed at its target. */
enum { NACK_STALE = 1, NACK_OUTSIDE, NACK_UNALIGNED };

/* Questions: whom the receiver waits for (rank + 1, 0 for nobody); which fault stands, if not this one. */
enum { ASK_WAITING = 1, ASK_FAULT };

struct message {
    uint32_t kind;
    uint32_t bytes; /* of payload */
    uint32_t queue; /* the requester's number */
    uint32_t last;  /* whether the operation, or the result, ends with this message */
    uint64_t position;
    uint64_t region;
    uint64_t offset;
    uint64_t value;
    uint64_t compare;
    uint32_t action; /* CAMPANILE_SIGNAL_*, CAMPANILE_ATOMIC_* or ASK_* */
    uint32_t reserved;
};

_Static_assert(sizeof(struct message) == 64, "a message begins with 64 bytes");

/* What both ends of a connection say first. */
struct hello {
    uint64_t magic;
    uint64_t token; /* the listener's */
    uint32_t rank;
    uint32_t reserved;
};

#define HELLO_MAGIC UINT64_C(0x31786f626c69616d) /* "mailbox1" */

#endif
