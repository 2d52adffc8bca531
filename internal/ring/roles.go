package ring

// Producer puts bytes in.
type Producer struct{ Side }

// Producer makes a producer.
func (r *Ring) Producer() *Producer {
	return &Producer{Side{
		data:  r.data,
		flags: r.flags,
		flag:  flagProducer,
		mask:  maskProducer,
		own:   r.head,
		other: r.tail,
		lead:  uint64(len(r.data)),
	}}
}

// Free is the number of bytes that can be put in, beyond what this transaction has
// put in already. It may be asked without a transaction; then another producer may
// be faster. The error matches [ErrCorrupt].
func (p *Producer) Free() (int, error) { return p.ready() }

// Write puts in what there is room for, and returns how much that was: 0 and no
// error if there is none.
func (p *Producer) Write(src []byte) (int, error) {
	first, second, err := p.Next(len(src))
	return copy(first, src) + copy(second, src[len(first):]), err
}

// WriteAll puts in all of src, or returns [ErrShort] and puts in nothing.
func (p *Producer) WriteAll(src []byte) error {
	if err := p.need(len(src)); err != nil {
		return err
	}
	_, err := p.Write(src)
	return err
}

// Consumer takes bytes out.
type Consumer struct{ Side }

// Consumer makes a consumer.
func (r *Ring) Consumer() *Consumer {
	return &Consumer{Side{
		data:  r.data,
		flags: r.flags,
		flag:  flagConsumer,
		mask:  maskConsumer,
		own:   r.tail,
		other: r.head,
	}}
}

// Readable is the number of bytes that can be taken out, beyond what this
// transaction has taken already. It may be asked without a transaction; then
// another consumer may be faster. The error matches [ErrCorrupt].
func (c *Consumer) Readable() (int, error) { return c.ready() }

// Read takes out what there is and fits in dst, and returns how much that was: 0
// and no error if there is nothing.
func (c *Consumer) Read(dst []byte) (int, error) {
	first, second, err := c.Next(len(dst))
	return copy(dst, first) + copy(dst[len(first):], second), err
}

// ReadAll fills dst, or returns [ErrShort] and takes out nothing.
func (c *Consumer) ReadAll(dst []byte) error {
	if err := c.need(len(dst)); err != nil {
		return err
	}
	_, err := c.Read(dst)
	return err
}
