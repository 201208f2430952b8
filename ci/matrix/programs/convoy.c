// Three threads that want one lock, and each holds it for 5 ms, ten times: convoy
#include <pthread.h>
#include <time.h>

static struct {
    int cases;
    pthread_mutex_t lock;
} desk = {0, PTHREAD_MUTEX_INITIALIZER};

__attribute__((noinline)) void holds_desk(void) {
    struct timespec time = {0, 5000000};
    pthread_mutex_lock(&desk.lock);
    desk.cases++;
    nanosleep(&time, NULL);
    pthread_mutex_unlock(&desk.lock);
    // Else the call would be a jump, behind which this function is not on the stack.
    __asm__ volatile("");
}

static void *serves(void *unused) {
    for (int i = 0; i < 10; i++) holds_desk();
    return unused;
}

int main(void) {
    pthread_t threads[3];
    for (int i = 0; i < 3; i++) pthread_create(&threads[i], NULL, serves, NULL);
    for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
    return desk.cases != 30;
}
