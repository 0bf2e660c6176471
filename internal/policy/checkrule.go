package policy

// CheckRule returns what an operator should know about an allow rule, as Load warns of it. Its error says why
// the text is no rule, and what would be.
func CheckRule(text string) (warnings []string, err error) {
	spec, err := parseRule(text)
	if err != nil {
		return nil, err
	}
	return ruleWarnings(spec), nil
}
