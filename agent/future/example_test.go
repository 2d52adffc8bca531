package future_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/tensorpipe-go/tensorpipe/agent/future"
)

// square returns a future that another goroutine completes with n*n, as a call would that takes
// some time.
func square(n int) *future.Future[int] {
	f := future.New[int]()
	go func() { _ = f.Set(n * n) }()
	return f
}

func Example() {
	f := square(7)
	n, err := f.Wait(context.Background())
	fmt.Println(n, err)
	fmt.Println(f.Set(1))
	// Output:
	// 49 <nil>
	// future: already done
}

func ExampleThen() {
	text := future.Then(square(3), func(f *future.Future[int]) (string, error) {
		n, err := f.Result()
		return fmt.Sprintf("%d apples", n), err
	})
	fmt.Println(text.Wait(context.Background()))
	// Output: 9 apples <nil>
}

func ExampleThenFuture() {
	twice := future.ThenFuture(square(2), func(f *future.Future[int]) (*future.Future[int], error) {
		n, err := f.Result()
		return square(n), err
	})
	fmt.Println(twice.Wait(context.Background()))
	// Output: 16 <nil>
}

func ExampleWaitAll() {
	fmt.Println(future.WaitAll(context.Background(), square(1), square(2), square(3)))

	never := future.New[int]()
	failed := future.Failed[int](errors.New("no route to worker1"))
	_, err := future.WaitAll(context.Background(), never, failed)
	fmt.Println(err)
	// Output:
	// [1 4 9] <nil>
	// no route to worker1
}

func ExampleFuture_Cancel() {
	f := future.NewWith[int](future.Options{
		OnCancel: func(cause error) { fmt.Println("stop the work:", cause) },
	})
	f.Cancel(errors.New("the user has left"))
	_, err := f.Wait(context.Background())
	fmt.Println(err, errors.Is(err, future.ErrCancelled))
	// Output:
	// stop the work: the user has left
	// future: cancelled: the user has left true
}
