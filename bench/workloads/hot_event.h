#undef LTTNG_UST_TRACEPOINT_PROVIDER
#define LTTNG_UST_TRACEPOINT_PROVIDER kymo_hot

#undef LTTNG_UST_TRACEPOINT_INCLUDE
#define LTTNG_UST_TRACEPOINT_INCLUDE "./hot_event.h"

#if !defined(HOT_EVENT_H) || defined(LTTNG_UST_TRACEPOINT_HEADER_MULTI_READ)
#define HOT_EVENT_H
#include <lttng/tracepoint.h>

LTTNG_UST_TRACEPOINT_EVENT(kymo_hot, call, LTTNG_UST_TP_ARGS(unsigned long, number),
                           LTTNG_UST_TP_FIELDS(lttng_ust_field_integer(unsigned long, number, number)))
#endif
#include <lttng/tracepoint-event.h>
