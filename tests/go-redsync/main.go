// The other contender of the tests: go-redsync as its users run it, driven from the command line.
//
//	peer hold     [flags] NAME ADDR…   lock; hold until stdin ends or -for has passed, extending if -extend; unlock
//	peer contend  [flags] NAME ADDR…   lock, hold for -hold, unlock, again, until stdin ends or -locks times; with
//	                                   -counter count who is inside on that server, and look at the key on all nodes
//	peer wait     [flags] NAME ADDR…   wait in Lock, with as many tries as it takes; then unlock
//	peer bench    [flags] NAME ADDR…   -rounds of lock, extend, unlock: p50 and p99 of each in microseconds
//	peer handover [flags] NAME ADDR…   two waiters hand the lock over -rounds times: the gaps in microseconds
//
// It prints one JSON object a line. Boot times are those of CLOCK_BOOTTIME, which the tests compare with redleader's.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"math/rand"
	"os"
	"sort"
	"time"

	"github.com/go-redsync/redsync/v4"
	redsyncredis "github.com/go-redsync/redsync/v4/redis"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
	"golang.org/x/sys/unix"
)

// settings are the flags, the lock's name and the nodes' addresses.
type settings struct {
	ttl       time.Duration
	hold      time.Duration
	atMost    time.Duration
	extend    time.Duration
	pause     time.Duration
	rounds    int
	locks     int
	retry     time.Duration
	counter   string
	name      string
	addresses []string
}

func main() {
	modes := map[string]func(context.Context, settings) error{
		"hold": hold, "contend": contend, "wait": wait, "bench": bench, "handover": handover,
	}
	if len(os.Args) < 2 || modes[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "usage: peer hold|contend|wait|bench|handover [flags] NAME ADDR...")
		os.Exit(64)
	}
	var s settings
	flags := flag.NewFlagSet(os.Args[1], flag.ExitOnError)
	flags.DurationVar(&s.ttl, "ttl", 8*time.Second, "expiry of the lock")
	flags.DurationVar(&s.hold, "hold", 100*time.Millisecond, "contend: how long it is held each time")
	flags.DurationVar(&s.atMost, "for", time.Hour, "end after this long")
	flags.DurationVar(&s.extend, "extend", 0, "hold: extend this often; 0 never")
	flags.DurationVar(&s.pause, "pause", 0, "bench: rest before each step, as a holder does between its extends")
	flags.IntVar(&s.locks, "locks", 0, "contend: end after so many; 0 never")
	flags.DurationVar(&s.retry, "retry", 0, "contend: retry after up to this long, and pause as long after each lock; 0 as the library does")
	flags.StringVar(&s.counter, "counter", "", "contend: address of a server that counts who is inside")
	flags.IntVar(&s.rounds, "rounds", 50, "bench, handover: how many rounds")
	if err := flags.Parse(os.Args[2:]); err != nil || flags.NArg() < 2 {
		fmt.Fprintln(os.Stderr, "a lock's name and at least one address are needed")
		os.Exit(64)
	}
	s.name, s.addresses = flags.Arg(0), flags.Args()[1:]

	ctx, cancel := context.WithTimeout(context.Background(), s.atMost)
	defer cancel()
	go func() {
		// The test closes our stdin, or dies: either way we are done.
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	if err := modes[os.Args[1]](ctx, s); err != nil {
		say(map[string]any{"event": "failed", "error": err.Error()})
		os.Exit(1)
	}
}

// mutex is a contender of its own: its own connections, its own value.
func (s settings) mutex(options ...redsync.Option) *redsync.Mutex {
	pools := make([]redsyncredis.Pool, 0, len(s.addresses))
	for _, address := range s.addresses {
		pools = append(pools, goredis.NewPool(redis.NewClient(&redis.Options{Addr: address})))
	}
	options = append([]redsync.Option{redsync.WithExpiry(s.ttl)}, options...)
	return redsync.New(pools...).NewMutex(s.name, options...)
}

func hold(ctx context.Context, s settings) error {
	mutex := s.mutex()
	if err := mutex.LockContext(ctx); err != nil {
		return err
	}
	say(map[string]any{"event": "locked", "boot_ms": bootMillis(), "value": mutex.Value()})
	every := s.extend
	if every <= 0 {
		every = s.atMost
	}
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-ticker.C:
			if s.extend <= 0 {
				continue
			}
			if ok, err := mutex.ExtendContext(ctx); ctx.Err() == nil && (!ok || err != nil) {
				say(map[string]any{"event": "lost", "boot_ms": bootMillis(), "error": fmt.Sprint(err)})
				return nil
			}
		}
	}
	unlock(mutex)
	return nil
}

func contend(ctx context.Context, s settings) error {
	options := []redsync.Option{redsync.WithTries(math.MaxInt32)}
	if s.retry > 0 {
		options = append(options, redsync.WithRetryDelayFunc(func(int) time.Duration {
			return time.Duration(rand.Int63n(int64(s.retry))) + time.Millisecond
		}))
	}
	mutex := s.mutex(options...)
	inside := s.section()
	for locks := 0; ctx.Err() == nil && (s.locks == 0 || locks < s.locks); locks++ {
		if err := mutex.LockContext(ctx); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			say(map[string]any{"event": "refused", "boot_ms": bootMillis(), "error": err.Error()})
			continue
		}
		// until_boot_ms is the library's own word on how long it may be believed.
		locked := bootMillis()
		until := locked + time.Until(mutex.Until()).Milliseconds()
		event := map[string]any{"event": "locked", "boot_ms": locked, "until_boot_ms": until, "value": mutex.Value()}
		if err := inside.enter(ctx, event, mutex); err != nil {
			return err
		}
		say(event)
		select {
		case <-ctx.Done():
		case <-time.After(s.hold):
		}
		if err := inside.leave(ctx); err != nil {
			return err
		}
		unlock(mutex)
		if s.retry > 0 {
			// So that the others have their turn.
			time.Sleep(time.Duration(rand.Int63n(int64(s.retry))) + time.Millisecond)
		}
	}
	return nil
}

// section is what the lock guards: a counter that must never be above one, and the order of those who were inside.
type section struct {
	counter *redis.Client
	nodes   []*redis.Client
	name    string
}

func (s settings) section() *section {
	if s.counter == "" {
		return nil
	}
	guarded := &section{counter: redis.NewClient(&redis.Options{Addr: s.counter}), name: s.name}
	for _, address := range s.addresses {
		guarded.nodes = append(guarded.nodes, redis.NewClient(&redis.Options{Addr: address}))
	}
	return guarded
}

// enter counts us in, and notes how many nodes hold our value and the shortest life of those keys.
func (s *section) enter(ctx context.Context, event map[string]any, mutex *redsync.Mutex) error {
	if s == nil {
		return nil
	}
	inside, err := s.counter.Incr(ctx, "inside").Result()
	if err != nil {
		return err
	}
	held, shortest := 0, time.Duration(math.MaxInt64)
	for _, node := range s.nodes {
		value, err := node.Get(ctx, s.name).Result()
		if err != nil || value != mutex.Value() {
			continue
		}
		left, err := node.PTTL(ctx, s.name).Result()
		if err != nil {
			return err
		}
		held, shortest = held+1, min(shortest, left)
	}
	event["inside"], event["held"], event["pttl_ms"] = inside, held, shortest.Milliseconds()
	event["left_ms"] = time.Until(mutex.Until()).Milliseconds()
	return nil
}

func (s *section) leave(ctx context.Context) error {
	if s == nil {
		return nil
	}
	if err := s.counter.RPush(ctx, "order", "go").Err(); err != nil {
		return err
	}
	return s.counter.Decr(ctx, "inside").Err()
}

func wait(ctx context.Context, s settings) error {
	mutex := s.mutex(redsync.WithTries(math.MaxInt32))
	say(map[string]any{"event": "waiting", "boot_ms": bootMillis()})
	if err := mutex.LockContext(ctx); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	say(map[string]any{"event": "locked", "boot_ms": bootMillis(), "value": mutex.Value()})
	unlock(mutex)
	return nil
}

func bench(ctx context.Context, s settings) error {
	mutex := s.mutex()
	samples := map[string][]float64{}
	timed := func(step string, do func() error) error {
		began := time.Now()
		err := do()
		samples[step] = append(samples[step], micros(time.Since(began)))
		return err
	}
	refused := func(ok bool, err error) error {
		if err == nil && !ok {
			err = errors.New("refused")
		}
		return err
	}
	for round := 0; round < s.rounds && ctx.Err() == nil; round++ {
		steps := []struct {
			name string
			do   func() error
		}{
			{"acquire", func() error { return mutex.TryLockContext(ctx) }},
			{"extend", func() error { return refused(mutex.ExtendContext(ctx)) }},
			{"release", func() error { return refused(mutex.UnlockContext(ctx)) }},
		}
		for _, step := range steps {
			time.Sleep(s.pause)
			if err := timed(step.name, step.do); err != nil {
				return fmt.Errorf("round %d, %s: %w", round, step.name, err)
			}
		}
	}
	report := map[string]any{"event": "bench", "rounds": s.rounds}
	for step, values := range samples {
		report[step+"_p50_us"], report[step+"_p99_us"] = percentile(values, 50), percentile(values, 99)
	}
	say(report)
	return nil
}

func handover(ctx context.Context, s settings) error {
	holder, waiter := s.mutex(redsync.WithTries(math.MaxInt32)), s.mutex(redsync.WithTries(math.MaxInt32))
	if err := holder.LockContext(ctx); err != nil {
		return err
	}
	gaps := make([]float64, 0, s.rounds)
	for round := 0; round < s.rounds; round++ {
		won := make(chan error, 1)
		var at time.Time
		go func() {
			err := waiter.LockContext(ctx)
			at = time.Now()
			won <- err
		}()
		// Long enough that the waiter's retries are in their rhythm when the lock becomes free.
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-won:
			return fmt.Errorf("the waiter got a lock that is held: %v", err)
		case <-time.After(s.hold):
		}
		released := time.Now()
		unlock(holder)
		if err := <-won; err != nil {
			return err
		}
		gaps = append(gaps, micros(at.Sub(released)))
		holder, waiter = waiter, holder
	}
	say(map[string]any{
		"event": "handover", "gaps_us": gaps, "p50_us": percentile(gaps, 50), "p99_us": percentile(gaps, 99),
	})
	unlock(holder)
	return nil
}

// unlock has its own time: the mode's context is over when a hold ends.
func unlock(mutex *redsync.Mutex) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	at := bootMillis()
	ok, err := mutex.UnlockContext(ctx)
	event := map[string]any{"event": "unlocked", "boot_ms": at, "ok": ok}
	if err != nil {
		event["error"] = err.Error()
	}
	say(event)
}

func say(event map[string]any) {
	line, err := json.Marshal(event)
	if err != nil {
		panic(err)
	}
	fmt.Println(string(line))
}

func bootMillis() int64 {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
		panic(err)
	}
	return now.Nano() / int64(time.Millisecond)
}

func micros(d time.Duration) float64 {
	return float64(d.Nanoseconds()) / 1000
}

// percentile is the nearest rank.
func percentile(samples []float64, p int) float64 {
	if len(samples) == 0 {
		return 0
	}
	sorted := append([]float64(nil), samples...)
	sort.Float64s(sorted)
	return sorted[max(int(math.Ceil(float64(len(sorted)*p)/100))-1, 0)]
}
